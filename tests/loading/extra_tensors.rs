//! Tensors that published files hold beside a model's own: harmless ones are ignored, others are refused by name.

use std::fs;
use std::path::Path;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks::model::ModelInput;
use candle_blocks::{Checkpoint, CheckpointOptions, Result, Strictness, Weights};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};

use crate::all::all;
use crate::message::message;
use crate::numbers::bits;
use crate::published_names::copied;
use crate::said::assert_says;
use crate::weights::{is_present, weights};

/// An f32 tensor: its name, shape and the value of all its elements.
pub type Extra<'n> = (&'n str, &'n [usize], f32);

/// Returns a copy of a checkpoint with these additional tensors and keys.
pub fn with(folder: &Path, extra: &[Extra], change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    let text = fs::read(folder.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&text).unwrap();
    change(&mut config);
    fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let mut tensors = SafeTensors::deserialize(&bytes).unwrap().tensors();
    let numbers: Vec<Vec<u8>> = extra
        .iter()
        .map(|(_, shape, number)| number.to_le_bytes().repeat(shape.iter().product()))
        .collect();
    for ((name, shape, _), bytes) in extra.iter().zip(&numbers) {
        let view = TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap();
        tensors.push((name.to_string(), view));
    }
    let bytes = safetensors::serialize(tensors, None).unwrap();
    fs::write(copy.path().join("model.safetensors"), bytes).unwrap();
    copy
}

/// Returns the logits' bits for some tokens.
fn logits(checkpoint: &Checkpoint) -> Vec<u64> {
    let ids = candle_blocks::candle_core::Tensor::new(&[[1u32, 5, 9, 2]], &Device::Cpu).unwrap();
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .model()
        .unwrap();
    let output = model.forward(&ModelInput::tokens(&ids)).unwrap();
    bits(&output.logits.unwrap_or(output.last_hidden_state))
}

fn open(folder: impl AsRef<Path>) -> Result<Checkpoint> {
    CheckpointOptions::default().whole().open(folder)
}

/// The layers in GLM-4.5, DeepSeek-V3 and similar models, and modules with such names.
#[test]
fn layers_that_predict_further_tokens_are_ignored_in_every_family() {
    let mut n = 0;
    for stack in all() {
        let folder = stack.folder();
        if !folder.join("model.safetensors").is_file() {
            continue;
        }
        let checkpoint = stack.options().open(&folder).unwrap();
        let n_blocks = checkpoint.config().blocks.len();
        let files = checkpoint.files();
        let number = format!("layers.{}.", n_blocks - 1);
        let is_last =
            |name: &&str| name.starts_with(&number) || name.contains(&format!(".{number}"));
        let Some(last) = files.names().find(is_last) else {
            continue;
        };
        // Two stacks have layers of their own under a prefix each.
        if checkpoint
            .report()
            .used
            .iter()
            .all(|used| used.name != last)
        {
            continue;
        }
        let start = last.split(&number).next().unwrap();
        let after = format!("{start}layers.{}.", n_blocks + 40);
        let [projection, norm, own] =
            ["eh_proj.weight", "enorm.weight", "any.weight"].map(|end| format!("{after}{end}"));
        let block = format!("{start}mtp_block.0.any.weight");
        let extra: [Extra; 5] = [
            (&projection, &[2, 4], 1.0),
            (&norm, &[2], 1.0),
            (&own, &[2, 2], 1.0),
            (&block, &[2, 2], 1.0),
            ("mtp.layers.0.fc.weight", &[2, 2], 1.0),
        ];
        let copy = with(&folder, &extra, |_| {});
        let checkpoint = stack.options().open(copy.path()).unwrap();
        let report = checkpoint.report();
        assert_eq!(report.unused, [""; 0], "{}", stack.label());
        for (name, ..) in extra {
            assert!(
                report.ignored.iter().any(|ignored| ignored == name),
                "{name}"
            );
        }
        n += 1;
    }
    assert!(n >= 40 || !is_present("families/llama"), "only {n}");
}

#[test]
fn a_layer_after_the_last_is_ignored_if_the_configuration_says_that_it_predicts() {
    if !is_present("families/glm4_moe") {
        return;
    }
    let folder = weights("families/glm4_moe");
    let n = open(&folder).unwrap().config().blocks.len();
    let name = format!("model.layers.{n}.mlp.gate.weight");
    let extra: [Extra; 1] = [(&name, &[2, 2], 1.0)];
    let said = with(&folder, &extra, |config| {
        config["num_nextn_predict_layers"] = 1.into()
    });
    assert_eq!(
        logits(&open(said.path()).unwrap()),
        logits(&open(&folder).unwrap())
    );
    let unsaid = with(&folder, &extra, |config| {
        config["num_nextn_predict_layers"] = 0.into()
    });
    let checkpoint = open(unsaid.path()).unwrap();
    let refused = message(
        checkpoint
            .load(Weights::Dense(DType::F32, &Device::Cpu))
            .stack(),
    );
    assert_says(&refused, &[&name, "`Strictness::AllowUnused`"]);
    let options = CheckpointOptions::default().strictness(Strictness::AllowUnused);
    options
        .open(unsaid.path())
        .unwrap()
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .stack()
        .unwrap();
}

#[test]
fn scales_of_a_quantized_cache_are_ignored_beside_quantized_weights_alone() {
    let attention = "model.layers.0.self_attn.";
    for end in [
        "k_proj.k_scale",
        "v_proj.v_scale",
        "k_scale",
        "v_scale",
        "q_scale",
        "kv_scale",
        "k_zero_point",
        "k_proj.output_scale",
        "v_proj.output_scale",
    ] {
        let name = format!("{attention}{end}");
        for shape in [&[][..], &[1]] {
            let extra: [Extra; 1] = [(&name, shape, 0.25)];
            for format in [
                "quantized/fp8",
                "quantized/float8",
                "quantized/modelopt",
                "quantized/gptq-4",
            ] {
                if !is_present(format) {
                    continue;
                }
                let copy = with(&weights(format), &extra, |_| {});
                let ours = logits(&open(copy.path()).unwrap());
                assert_eq!(
                    ours,
                    logits(&open(weights(format)).unwrap()),
                    "{format} {end}"
                );
            }
            if is_present("families/llama") {
                let copy = with(&weights("families/llama"), &extra, |_| {});
                let checkpoint = open(copy.path()).unwrap();
                assert_eq!(checkpoint.report().unused, [name.as_str()]);
            }
        }
    }
}

#[test]
fn a_bias_that_the_model_has_not_is_ignored_if_it_is_zero() {
    for format in ["quantized/gptq-4", "quantized/awq", "families/llama"] {
        if !is_present(format) {
            continue;
        }
        let folder = weights(format);
        let files = TensorFiles::open(&folder).unwrap();
        let scales = files
            .names()
            .filter(|name| name.ends_with("q_proj.scales") || name.ends_with("q_proj.weight"));
        let q_proj = scales.last().unwrap();
        let name = format!(
            "{}bias",
            q_proj.trim_end_matches("scales").trim_end_matches("weight")
        );
        let zeros = with(&folder, &[(&name, &[48], 0.0)], |_| {});
        let checkpoint = open(zeros.path()).unwrap();
        assert_eq!(checkpoint.report().ignored, [name.as_str()], "{format}");
        assert_eq!(
            logits(&checkpoint),
            logits(&open(&folder).unwrap()),
            "{format}"
        );
        let ones = with(&folder, &[(&name, &[48], -0.5)], |_| {});
        let refused = message(
            open(ones.path())
                .unwrap()
                .load(Weights::Dense(DType::F32, &Device::Cpu))
                .stack(),
        );
        assert_says(&refused, &[&name, "does not know"]);
    }
}

#[test]
fn buffers_are_ignored_in_every_family() {
    for name in ["families/llama", "tiny-bert", "tiny-gpt2", "families/vit"] {
        if !is_present(name) {
            continue;
        }
        let extra: [Extra; 6] = [
            ("a.rotary_emb.inv_freq", &[4], 1.0),
            ("a.rotary_emb.cos_cached", &[1, 1, 4, 4], 1.0),
            ("a.rotary_emb.sin_cached", &[1, 1, 4, 4], 1.0),
            ("embeddings.position_ids", &[1, 4], 1.0),
            ("h.0.attn.masked_bias", &[], -1e9),
            ("rotary_emb.inv_freq", &[4], 1.0),
        ];
        let copy = with(&weights(name), &extra, |_| {});
        let report = open(copy.path()).unwrap().report();
        assert_eq!(report.unused, [""; 0], "{name}");
        let own = open(weights(name)).unwrap().report().ignored.len();
        assert_eq!(report.ignored.len(), own + 6, "{name}");
    }
}

/// Granite Docling's router chooses patches of an image, of which a text has none.
#[test]
fn a_router_of_patches_is_left_out_of_a_text() {
    if !is_present("families") {
        return;
    }
    let folder = weights("families/llava");
    let extra: [Extra; 2] = [
        ("model.density_router.fc1.weight", &[1, 8], 1.0),
        ("model.density_router.norm.bias", &[8], 1.0),
    ];
    let copy = with(&folder, &extra, |_| {});
    let both = [folder.as_path(), copy.path()].map(|path| Checkpoint::open(path).unwrap());
    assert_eq!(both[1].report().unused, [""; 0]);
    let [own, beside] = both.each_ref().map(logits);
    assert_eq!(own, beside);
}

#[test]
fn a_head_of_a_trainer_is_refused_by_name() {
    let copy = with(
        &weights("tiny-bert"),
        &[("v_head.summary.weight", &[1, 2], 1.0)],
        |_| {},
    );
    let checkpoint = open(copy.path()).unwrap();
    let refused = message(
        checkpoint
            .load(Weights::Dense(DType::F32, &Device::Cpu))
            .stack(),
    );
    assert_says(&refused, &["v_head.summary.weight", "bert"]);
}

/// transformers ties the later use to the first, unless the file has other values for it.
#[test]
fn a_later_use_of_a_shared_transformer_may_repeat_its_values_and_no_others() {
    if !is_present("families/zamba2-two") {
        return;
    }
    let folder = weights("families/zamba2-two");
    let files = TensorFiles::open(&folder).unwrap();
    let copies: Vec<(String, Tensor)> = files
        .names()
        .filter(|name| name.starts_with("model.layers.0.shared"))
        .map(|name| (name.replace("s.0.shared", "s.2.shared"), files.read(name)))
        .map(|(name, tensor)| (name, tensor.unwrap()))
        .collect();
    let head = files.read("model.embed_tokens.weight").unwrap();
    let with = |change: f64, is_tied: bool| {
        let changed = copies.iter().map(|(name, tensor)| {
            let tensor = match name.ends_with("q_proj.weight") {
                true => (tensor + change).unwrap(),
                false => tensor.clone(),
            };
            (name.as_str(), tensor)
        });
        let head = (!is_tied).then(|| ("lm_head.weight", head.clone()));
        let tensors: Vec<_> = changed.chain(head).collect();
        copied(
            &folder,
            &json!({"tie_word_embeddings": is_tied}),
            &[],
            &tensors,
        )
    };
    let original = logits(&open(&folder).unwrap());
    let opened = |folder: tempfile::TempDir| logits(&open(folder.path()).unwrap());
    assert_eq!(opened(with(0.0, true)), original);
    let refused = message(open(with(1.0, true).path()));
    let first = "model.layers.0.shared_transformer.self_attn.q_proj.weight";
    assert_says(
        &refused,
        &[
            "\"tie_word_embeddings\"",
            "block 2",
            "block 0",
            first,
            "expected false",
        ],
    );
    // What the message asks for.
    assert_eq!(opened(with(0.0, false)), original);
    assert_ne!(opened(with(1.0, false)), original);
}
