//! PEFT adapters are merged into the weights, and give PEFT's results.

use std::fs;
use std::path::{Path, PathBuf};

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks::checkpoint::write::write_safetensors;
use candle_blocks::checkpoint::{InsteadOfStored, NotAsStored};
use candle_blocks::model::{Model, ModelInput};
use candle_blocks::verify::{Expected, compare};
use candle_blocks::{Checkpoint, CheckpointOptions, Precision, Weights};
use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};

use crate::message::message;
use crate::torch_from_safetensors::convert;
use crate::weights::{is_present, weights};

/// PEFT's results with adapters, and the base model.
struct Judged {
    base: PathBuf,
    adapters: Vec<PathBuf>,
    expected: TensorFiles,
}

fn judged() -> Vec<Judged> {
    if !["adapters", "families", "heads"]
        .into_iter()
        .all(is_present)
    {
        return vec![];
    }
    let folder = weights("adapters");
    let mut found = vec![read(
        &folder.join("several.safetensors"),
        &["patterns", "rooted"],
    )];
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            found.push(read(&path.join("expected.safetensors"), &[&name]));
        }
    }
    assert!(found.len() >= 15, "only {}", found.len());
    found
}

fn read(path: &Path, names: &[&str]) -> Judged {
    let expected = TensorFiles::open(path).unwrap();
    Judged {
        base: weights(&expected.metadata()["base"]),
        adapters: names.iter().map(|name| adapter(name)).collect(),
        expected,
    }
}

fn adapter(name: &str) -> PathBuf {
    weights("adapters").join(name)
}

fn open(base: &Path, adapters: &[PathBuf]) -> candle_blocks::Result<Checkpoint> {
    let options = CheckpointOptions::default().whole();
    let options = adapters.iter().fold(options, CheckpointOptions::adapter);
    options.open(base)
}

fn output(model: &Model, files: &TensorFiles) -> Tensor {
    let input = match files.contains("pixel_values") {
        true => ModelInput::pixels(&files.read("pixel_values").unwrap()),
        false => ModelInput::tokens(&files.read("input_ids").unwrap()),
    };
    let output = model.forward(&input).unwrap();
    output.logits.unwrap_or(output.last_hidden_state)
}

/// Asserts that a checkpoint gives the expected results, unpacked and packed.
fn assert_computes(checkpoint: &Checkpoint, expected: &TensorFiles) {
    let read = |name: &str| expected.read(name).unwrap();
    let judge = Expected::new(read("output"), Some(read("output.f64"))).unwrap();
    for model in [
        checkpoint
            .load(Weights::Dense(DType::F32, &Device::Cpu))
            .model()
            .unwrap(),
        checkpoint
            .load(Weights::Packed(Precision::F32))
            .model()
            .unwrap(),
    ] {
        let comparison = compare("output", &output(&model, expected), &judge, None);
        assert!(comparison.passed(), "{:?}: {comparison:?}", expected.path());
    }
}

#[test]
fn adapters_compute_what_peft_computes() {
    for Judged {
        base,
        adapters,
        expected,
    } in judged()
    {
        let checkpoint = open(&base, &adapters).unwrap_or_else(|e| panic!("{adapters:?}: {e}"));
        assert_computes(&checkpoint, &expected);
        let report = checkpoint.report();
        assert!(report.unused.is_empty() && report.missing.is_empty());
        assert_eq!(report.adapters.len(), adapters.len());
        for (found, given) in report.adapters.iter().zip(&adapters) {
            assert_eq!(&found.directory, given);
            assert!(!found.is_beside && !found.tensors.is_empty(), "{found:?}");
        }
        // Without them the model computes something else.
        let bare = open(&base, &[]).unwrap();
        let bare = output(
            &bare.load(Weights::Packed(Precision::F32)).model().unwrap(),
            &expected,
        );
        let judge = Expected::new(expected.read("output").unwrap(), None).unwrap();
        assert!(
            !compare("output", &bare, &judge, None).passed(),
            "{adapters:?}"
        );
    }
}

#[test]
fn some_rows_of_a_tensor_with_an_adapter_are_those_of_the_whole() {
    for Judged { base, adapters, .. } in judged() {
        let checkpoint = open(&base, &adapters).unwrap();
        let files = checkpoint.files();
        let report = checkpoint.report();
        assert!(!report.adapters[0].tensors.is_empty());
        for name in &report.adapters[0].tensors {
            let whole = files.read(name).unwrap();
            let n = whole.dims()[0];
            for rows in [n / 3..n / 3 + n / 2, 0..1, n - 1..n] {
                let found = files.read_rows(name, std::slice::from_ref(&rows)).unwrap();
                let part = whole.narrow(0, rows.start, rows.len()).unwrap();
                let off = (found - part).unwrap().abs().unwrap().max_all().unwrap();
                assert!(
                    off.to_scalar::<f32>().unwrap() < 1e-6,
                    "{adapters:?} {name}"
                );
            }
        }
    }
}

#[test]
fn a_saved_copy_has_the_adapter_in_its_weights() {
    for Judged {
        base,
        adapters,
        expected,
    } in judged()
    {
        let folder = tempdir().unwrap();
        let saved = folder.path().join("merged");
        let nothing = Vec::<(String, Tensor)>::new();
        open(&base, &adapters)
            .unwrap()
            .save(&saved, nothing)
            .unwrap();
        let copy = open(&saved, &[]).unwrap();
        assert!(copy.report().adapters.is_empty());
        assert_computes(&copy, &expected);
    }
}

#[test]
fn an_adapter_on_quantized_weights_is_added_to_the_dequantized_values() {
    if !["adapters", "gguf", "quantized"]
        .into_iter()
        .all(is_present)
    {
        return;
    }
    for base in ["gguf/llama/model.gguf", "quantized/gptq-4"] {
        let (base, folder) = (weights(base), tempdir().unwrap());
        let name = "model.layers.0.self_attn.q_proj";
        let numbers = |adapters: &[PathBuf]| {
            let checkpoint = open(&base, adapters).unwrap();
            let tensor = checkpoint.files().read(&format!("{name}.weight"));
            (tensor.unwrap(), checkpoint)
        };
        let (before, _) = numbers(&[]);
        let (d_out, d_in) = before.dims2().unwrap();
        let random = |shape| Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap();
        let (a, b) = (random((2, d_in)), random((d_out, 2)));
        let named = |end: &str, tensor: &Tensor| {
            (
                format!("base_model.model.{name}.{end}.weight"),
                tensor.clone(),
            )
        };
        let all = |json: &mut Value| {
            json["target_modules"] = json!("all-linear");
            json["alpha_pattern"] = json!({});
        };
        copy_adapter("patterns", folder.path(), all);
        let tensors = [named("lora_A", &a), named("lora_B", &b)];
        let path = folder.path().join("adapter_model.safetensors");
        write_safetensors(path, &tensors, None).unwrap();
        let (after, checkpoint) = numbers(&[folder.path().to_path_buf()]);
        let expected = (before + (b.matmul(&a).unwrap() * 2.0).unwrap()).unwrap();
        let off = (after - expected)
            .unwrap()
            .abs()
            .unwrap()
            .max_all()
            .unwrap();
        assert!(off.to_scalar::<f32>().unwrap() < 1e-5, "{base:?}");
        // Quantized values with an adapter added have no packed form, and the report says so.
        checkpoint
            .load(Weights::Packed(Precision::AsStored))
            .model()
            .unwrap();
        let report = checkpoint.report();
        let is_it = |of: &&NotAsStored| of.tensor_type.ends_with("with an adapter");
        let dequantized = report.not_as_stored.iter().find(is_it).unwrap();
        assert_eq!(dequantized.instead, InsteadOfStored::Dequantized);
        assert_eq!(dequantized.matrices, [format!("{name}.weight")]);
    }
}

/// Returns a folder with a copy of a base model and an adapter.
fn beside(base: &str, name: &str, change: impl Fn(&mut Value)) -> TempDir {
    let folder = tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(weights(base).join(file), folder.path().join(file)).unwrap();
    }
    copy_adapter(name, folder.path(), change);
    folder
}

fn copy_adapter(name: &str, folder: &Path, change: impl Fn(&mut Value)) {
    let (config, tensors) = ("adapter_config.json", "adapter_model.safetensors");
    fs::create_dir_all(folder).unwrap();
    fs::copy(adapter(name).join(tensors), folder.join(tensors)).unwrap();
    let text = fs::read_to_string(adapter(name).join(config)).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    change(&mut json);
    fs::write(folder.join(config), json.to_string()).unwrap();
}

#[test]
fn an_adapter_in_a_file_of_pytorch_is_that_of_safetensors() {
    if !is_present("adapters") {
        return;
    }
    let folder = tempdir().unwrap();
    copy_adapter("classifier", folder.path(), |_| ());
    let [from, to] =
        ["safetensors", "bin"].map(|end| folder.path().join(format!("adapter_model.{end}")));
    convert(&from, &to);
    let judge = TensorFiles::open(adapter("classifier").join("expected.safetensors")).unwrap();
    let base = weights("tiny-bert");
    assert_computes(
        &open(&base, &[folder.path().to_path_buf()]).unwrap(),
        &judge,
    );
    assert_computes(&open(&base, std::slice::from_ref(&to)).unwrap(), &judge);
    // In the place of a model, with it or without.
    let text = message(open(folder.path(), &[]));
    assert!(
        text.contains("a PEFT adapter without the base model"),
        "{text}"
    );
    for file in ["config.json", "model.safetensors"] {
        fs::copy(base.join(file), folder.path().join(file)).unwrap();
    }
    convert(
        &folder.path().join("model.safetensors"),
        &folder.path().join("pytorch_model.bin"),
    );
    let own = json!({"base_model_name_or_path": ""});
    let path = folder.path().join("adapter_config.json");
    let mut json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    json.as_object_mut()
        .unwrap()
        .extend(own.as_object().unwrap().clone());
    fs::write(&path, json.to_string()).unwrap();
    assert_computes(&open(folder.path(), &[]).unwrap(), &judge);
}

#[test]
fn an_adapter_beside_the_weights_is_applied_and_reported() {
    if !is_present("adapters") {
        return;
    }
    let own = |json: &mut Value| json["base_model_name_or_path"] = json!("");
    let folder = beside("tiny-bert", "classifier", own);
    let judge = TensorFiles::open(adapter("classifier").join("expected.safetensors")).unwrap();
    let by_file = folder.path().join("model.safetensors");
    for path in [folder.path(), &by_file] {
        let checkpoint = open(path, &[]).unwrap();
        assert_computes(&checkpoint, &judge);
        assert!(checkpoint.report().adapters[0].is_beside);
        assert_eq!(checkpoint.labels().unwrap().len(), 3);
    }
    // Applied once, even if it is also requested.
    let requested = open(folder.path(), &[folder.path().to_path_buf()]).unwrap();
    assert_eq!(requested.report().adapters.len(), 1);
    assert_computes(&requested, &judge);
}

#[test]
fn an_adapter_beside_weights_that_may_have_it_already_is_refused() {
    if !is_present("adapters") {
        return;
    }
    let other = |json: &mut Value| json["base_model_name_or_path"] = json!("someone/base");
    let folder = beside("tiny-bert", "classifier", other);
    let said = message(open(folder.path(), &[]));
    for part in [
        "adapter",
        "someone/base",
        "--adapter",
        "CheckpointOptions::adapter",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(open(folder.path(), &[folder.path().to_path_buf()]).is_ok());
}

#[test]
fn an_adapter_alone_names_its_base_model_or_finds_it() {
    if !is_present("adapters") {
        return;
    }
    let folder = tempdir().unwrap();
    let named =
        |base: Value| move |json: &mut Value| json["base_model_name_or_path"] = base.clone();
    for (base, expected) in [
        (json!("someone/base"), "someone/base"),
        (Value::Null, "names no base model"),
    ] {
        copy_adapter("classifier", folder.path(), named(base));
        for path in [
            folder.path().to_path_buf(),
            folder.path().join("adapter_model.safetensors"),
        ] {
            let said = message(open(&path, &[]));
            for part in ["PEFT adapter", expected, "--adapter", "merge_and_unload"] {
                assert!(said.contains(part), "{said}");
            }
        }
    }
    let base = weights("tiny-bert").canonicalize().unwrap();
    copy_adapter("classifier", folder.path(), named(json!(base)));
    let judge = TensorFiles::open(adapter("classifier").join("expected.safetensors")).unwrap();
    assert_computes(&open(folder.path(), &[]).unwrap(), &judge);
    // transformers takes other weights for no model without a config.json.
    let other = folder.path().join("model.safetensors");
    fs::copy(weights("tiny-gpt2/model.safetensors"), &other).unwrap();
    assert_computes(&open(folder.path(), &[]).unwrap(), &judge);
    // And with one, for the base model, whatever the adapter names.
    fs::copy(base.join("model.safetensors"), &other).unwrap();
    let config = base.join("config.json");
    fs::copy(config, folder.path().join("config.json")).unwrap();
    let mapping = json!({
        "base_model_class": "BertForSequenceClassification",
        "parent_library": "transformers.models.bert.modeling_bert",
    });
    copy_adapter("classifier", folder.path(), |json| {
        json["base_model_name_or_path"] = Value::Null;
        json["task_type"] = Value::Null;
        json["auto_mapping"] = mapping.clone();
    });
    let checkpoint = open(folder.path(), &[]).unwrap();
    assert!(checkpoint.report().adapters[0].is_beside);
    assert_computes(&checkpoint, &judge);
}

#[test]
fn unsupported_features_of_adapters_are_refused_by_key() {
    if !is_present("adapters") || !is_present("families") {
        return;
    }
    let cases: &[(&str, Value, &str)] = &[
        ("peft_type", json!("IA3"), "\"IA3\""),
        ("peft_type", json!("PREFIX_TUNING"), "\"PREFIX_TUNING\""),
        (
            "layer_replication",
            json!([[0, 1], [0, 1]]),
            "repeats layers",
        ),
        ("alora_invocation_tokens", json!([1]), "these tokens"),
        ("use_qalora", json!(true), "groups of inputs"),
        (
            "init_lora_weights",
            json!("pissa_niter_4"),
            "path_initial_model_for_weight_conversion",
        ),
        (
            "init_lora_weights",
            json!("olora"),
            "path_initial_model_for_weight_conversion",
        ),
        ("init_lora_weights", json!("other"), "is unknown"),
        ("bias", json!("some"), "\"lora_only\""),
        ("rank_pattern", json!({"q_proj": 5}), "give model.layers"),
        ("alpha_pattern", json!({"(": 5}), "regular expression"),
        (
            "alpha_pattern",
            json!({"q_proj": 5, "self_attn.q_proj": 6}),
            "several patterns",
        ),
        (
            "target_modules",
            json!(["q_proj"]),
            "excludes model.layers.0.mlp.down_proj",
        ),
        ("target_modules", Value::Null, "its own list"),
        ("target_modules", json!([]), "excludes"),
        (
            "exclude_modules",
            json!(".*down_proj"),
            "excludes model.layers.0.mlp.down_proj",
        ),
        ("layers_to_transform", json!([0]), "excludes"),
        ("use_dora", json!(true), "lora_magnitude_vector"),
        ("r", json!(7), "give model.layers"),
    ];
    for (key, value, expected) in cases {
        let folder = tempdir().unwrap();
        copy_adapter("patterns", folder.path(), |json| json[key] = value.clone());
        let said = message(open(
            &weights("families/qwen2"),
            &[folder.path().to_path_buf()],
        ));
        assert!(
            said.contains(expected) && said.contains("adapter_"),
            "{key}: {said}"
        );
    }
}

#[test]
fn a_wrapper_of_experts_that_its_configuration_does_not_name_is_refused() {
    if !is_present("adapters") || !is_present("families") {
        return;
    }
    let cases: &[(&str, Value, &str)] = &[
        (
            "target_parameters",
            json!(["experts.down_proj", "gate.weight"]),
            "target_parameters",
        ),
        ("target_parameters", Value::Null, "target_parameters"),
        ("use_dora", json!(true), "use_dora"),
        ("rank_pattern", json!({}), "for rank 2 of the 3 experts"),
    ];
    for (key, value, expected) in cases {
        let folder = tempdir().unwrap();
        copy_adapter("experts", folder.path(), |json| json[key] = value.clone());
        let base = weights("families/mixtral");
        let said = message(open(&base, &[folder.path().to_path_buf()]));
        assert!(
            said.contains(expected) && said.contains("model.layers."),
            "{key}: {said}"
        );
    }
}

/// transformers 4 had a module for each matrix. PEFT joins their adapters, and then keeps no other scale than `lora_alpha / r`.
#[test]
fn adapters_of_single_experts_are_refused_where_joining_them_changes_their_scale() {
    if !is_present("adapters") || !is_present("families") {
        return;
    }
    let module = "model.layers.0.block_sparse_moe.experts.1.w1";
    let of = |key: &str, value: Value| {
        let folder = tempdir().unwrap();
        copy_adapter("rooted", folder.path(), |json| {
            json["target_modules"] = json!(["w1"]);
            json["use_rslora"] = json!(false);
            json[key] = value.clone();
        });
        let factor = |end: &str, shape| {
            let name = format!("base_model.model.{module}.{end}.weight");
            (name, Tensor::ones(shape, DType::F32, &Device::Cpu).unwrap())
        };
        let tensors = [factor("lora_A", (2, 12)), factor("lora_B", (21, 2))];
        let path = folder.path().join("adapter_model.safetensors");
        write_safetensors(path, &tensors, None).unwrap();
        let base = weights("families/mixtral");
        open(&base, &[folder.path().to_path_buf()])
    };
    assert_eq!(of("r", json!(2)).unwrap().report().adapters.len(), 1);
    let all = message(of("target_modules", json!("all-linear")));
    assert!(all.contains("target_modules"), "{all}");
    for (key, value) in [
        ("use_rslora", json!(true)),
        ("alpha_pattern", json!({"w1": 3})),
    ] {
        let said = message(of(key, value));
        assert!(said.contains(key) && said.contains(module), "{said}");
    }
}

#[test]
fn a_head_that_no_class_has_is_refused_by_the_task() {
    if !is_present("adapters") {
        return;
    }
    let folder = tempdir().unwrap();
    let with = |task: Value, saved: Value| {
        copy_adapter("classifier", folder.path(), |json| {
            json["task_type"] = task.clone();
            json["modules_to_save"] = saved.clone();
        });
        open(&weights("tiny-bert"), &[folder.path().to_path_buf()])
    };
    let said = message(with(Value::Null, json!(["classifier"])));
    for part in ["task_type", "auto_mapping", "classifier."] {
        assert!(said.contains(part), "{said}");
    }
    // PEFT's class for the task saves its head, whatever the list says.
    let checkpoint = with(json!("SEQ_CLS"), Value::Null).unwrap();
    let judge = TensorFiles::open(adapter("classifier").join("expected.safetensors")).unwrap();
    assert_computes(&checkpoint, &judge);
}

#[test]
fn a_tensor_without_a_place_is_refused_by_its_name() {
    if !is_present("adapters") || !is_present("families") {
        return;
    }
    let of = |names: &[(&str, &[usize])]| {
        let folder = tempdir().unwrap();
        copy_adapter("patterns", folder.path(), |json| {
            json["target_modules"] = json!("all-linear")
        });
        let zeros = |(name, shape): &(&str, &[usize])| {
            let zeros = Tensor::zeros(*shape, DType::F32, &Device::Cpu).unwrap();
            (format!("base_model.model.{name}"), zeros)
        };
        let tensors: Vec<_> = names.iter().map(zeros).collect();
        write_safetensors(
            folder.path().join("adapter_model.safetensors"),
            &tensors,
            None,
        )
        .unwrap();
        message(open(
            &weights("families/qwen2"),
            &[folder.path().to_path_buf()],
        ))
    };
    let q = "model.layers.0.self_attn.q_proj";
    let (a, b) = (format!("{q}.lora_A.weight"), format!("{q}.lora_B.weight"));
    let a_named = format!("{q}.lora_A.default.weight");
    for (names, expected) in [
        (
            vec![(
                "model.layers.7.self_attn.q_proj.lora_A.weight",
                &[2, 16][..],
            )],
            "has no model.layers.7",
        ),
        (
            vec![(a.as_str(), &[2, 16])],
            "lacks one of lora_A and lora_B",
        ),
        (
            vec![(a.as_str(), &[2, 15]), (b.as_str(), &[16, 2])],
            "do not fit model.layers.0.self_attn.q_proj.weight",
        ),
        (vec![(a_named.as_str(), &[2, 16])], "LoRA has no tensor"),
        (vec![("model.norm.weight", &[5])], "model.norm.weight"),
    ] {
        let said = of(&names);
        assert!(said.contains(expected), "{names:?}: {said}");
    }
}
