//! Types of code on the Hub that compute as another type, which transformers' values judge: the same bits under their own keys and
//! names.

use std::fs;
use std::path::Path;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::write::write_safetensors;
use candle_blocks::model::ModelInput;
use candle_blocks::{Checkpoint, CheckpointOptions, Weights};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::said::assert_says;
use crate::weights::{is_present, weights};

/// Returns a committed checkpoint with other keys and names.
fn renamed(family: &str, keys: &Value, names: &[(&str, &str)]) -> TempDir {
    let source = weights("families").join(family);
    let files = Checkpoint::open(&source).unwrap();
    let files = files.files();
    let name = |name: &str| {
        names
            .iter()
            .fold(name.to_string(), |name, (from, to)| name.replace(from, to))
    };
    let tensors: Vec<_> = files
        .names()
        .map(|own| (name(own), files.read(own).unwrap()))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write_safetensors(path, &tensors, None).unwrap();
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let keys = keys.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(keys);
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

/// Returns the hidden states, and the logits of a class that has any.
fn outputs(folder: &TempDir) -> (Vec<f32>, Option<Vec<f32>>) {
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .model()
        .unwrap();
    let ids = Tensor::new(&[[2u32, 3, 4, 5, 6, 3]], &Device::Cpu).unwrap();
    let output = model.forward(&ModelInput::tokens(&ids)).unwrap();
    let numbers = |tensor: Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    (
        numbers(output.last_hidden_state),
        output.logits.map(numbers),
    )
}

#[test]
fn types_of_the_hub_compute_what_their_models_type_of_transformers_does() {
    if !is_present("families") {
        return;
    }
    let of_yi = [
        ("input_layernorm", "ln1"),
        ("post_attention_layernorm", "ln2"),
    ];
    let of_internlm = json!({"model_type": "internlm", "bias": false, "rotary": {"base": 100.0, "type": "origin"}});
    let of_deci = json!({"model_type": "deci", "num_key_value_heads": null, "num_key_value_heads_per_layer": [2, 2]});
    let base = |class: &str| json!({"architectures": [class], "is_causal": false});
    for (family, before, after, names) in [
        ("llama", json!({}), json!({"model_type": "Yi"}), &of_yi[..]),
        ("llama", json!({}), json!({"model_type": "xverse"}), &[]),
        ("llama", json!({}), json!({"model_type": "skywork"}), &[]),
        ("llama", json!({}), json!({"model_type": "aquila"}), &[]),
        ("qwen2", json!({}), json!({"model_type": "mimo"}), &[]),
        (
            "deepseek_v3",
            json!({}),
            json!({"model_type": "kimi_k2"}),
            &[],
        ),
        ("llama", json!({}), of_internlm, &[]),
        ("llama", json!({}), of_deci, &[]),
        (
            "llama",
            base("LlamaModel"),
            json!({"model_type": "llama_bidirec", "architectures": ["LlamaBidirectionalModel"]}),
            &[],
        ),
        (
            "qwen3",
            base("Qwen3Model"),
            json!({"model_type": "bidirectional_pplx_qwen3", "architectures": ["PPLXQwen3Model"]}),
            &[],
        ),
    ] {
        let expected = outputs(&renamed(family, &before, &[]));
        let found = outputs(&renamed(family, &after, names));
        assert!(found.0.iter().all(|number| number.is_finite()), "{after}");
        assert_eq!(found, expected, "{after}");
    }
}

/// Returns the hidden states of Jina Embeddings v3 with this `config.json` and these tensors, and a task's factors if named.
fn states(
    config: &Value,
    tensors: &[(String, Tensor)],
    task: Option<&str>,
) -> candle_blocks::Result<Vec<f32>> {
    let folder = tempfile::tempdir().unwrap();
    write_safetensors(folder.path().join("model.safetensors"), tensors, None).unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let options = task
        .into_iter()
        .fold(CheckpointOptions::default(), |options, task| {
            options.adapter(task)
        });
    let checkpoint = options.open(folder.path())?;
    let report = checkpoint.report();
    assert!(
        report.missing.is_empty() && report.unused.is_empty(),
        "{report}"
    );
    assert!(report.unread_keys.is_empty(), "{:?}", report.unread_keys);
    let names: Vec<_> = report
        .adapters
        .iter()
        .map(|one| one.directory.to_str().unwrap())
        .collect();
    assert_eq!(names, Vec::from_iter(task));
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .model()?;
    let ids = Tensor::new(&[[2u32, 3, 4, 5, 6, 3]], &Device::Cpu)?;
    let states = model.forward(&ModelInput::tokens(&ids))?.last_hidden_state;
    Ok(states.flatten_all()?.to_vec1()?)
}

/// transformers judges the converted checkpoint. The same values in the tensors of the authors' code give the same
/// states; with a task, the states are those of weights to which the factors' product is added in float64.
#[test]
fn the_authors_own_files_of_jina_embeddings_v3_load_with_and_without_a_task() {
    if !is_present("families") {
        return;
    }
    let source = weights("families/jina_embeddings_v3");
    let checkpoint = Checkpoint::open(&source).unwrap();
    let files = checkpoint.files();
    let of_stack = files.names().filter(|name| name.starts_with("roberta."));
    let plain: Vec<_> = of_stack
        .map(|name| (name.to_string(), files.read(name).unwrap()))
        .collect();
    let (n_tasks, rank, alpha) = (3, 2, 3.0);
    let mut original = Vec::new();
    let mut of_tasks = vec![Vec::new(); n_tasks];
    for (name, weight) in &plain {
        let module = name.strip_suffix(".weight").filter(|_| weight.rank() == 2);
        let Some(module) = module else {
            original.push((name.clone(), weight.clone()));
            of_tasks
                .iter_mut()
                .for_each(|all| all.push((name.clone(), weight.clone())));
            continue;
        };
        let (d_out, d_in) = weight.dims2().unwrap();
        let draw =
            |shape: (usize, usize, usize)| Tensor::randn(0f32, 0.3, shape, &Device::Cpu).unwrap();
        // W + BA for a linear layer, W + AB for embeddings.
        let is_embedding = name.contains("embeddings");
        let (a, b) = match is_embedding {
            true => (draw((n_tasks, d_out, rank)), draw((n_tasks, rank, d_in))),
            false => (draw((n_tasks, rank, d_in)), draw((n_tasks, d_out, rank))),
        };
        for (task, all) in of_tasks.iter_mut().enumerate() {
            let of = |factor: &Tensor| factor.get(task).unwrap().to_dtype(DType::F64).unwrap();
            let (left, right) = if is_embedding {
                (of(&a), of(&b))
            } else {
                (of(&b), of(&a))
            };
            let change = (left.matmul(&right).unwrap() * (alpha / rank as f64)).unwrap();
            let sum = (weight.to_dtype(DType::F64).unwrap() + change).unwrap();
            all.push((name.clone(), sum.to_dtype(DType::F32).unwrap()));
        }
        let name = |end: &str| format!("{module}.parametrizations.weight.{end}");
        original.push((name("original"), weight.clone()));
        original.push((name("0.lora_A"), a));
        original.push((name("0.lora_B"), b));
    }
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    let mut port: Value = serde_json::from_str(&text).unwrap();
    port["architectures"] = json!(["JinaEmbeddingsV3Model"]);
    let mut config = port.clone();
    let keys = config.as_object_mut().unwrap();
    for key in [
        "model_type",
        "rope_parameters",
        "transformers_version",
        "tie_word_embeddings",
    ] {
        keys.remove(key);
    }
    // As in jinaai/jina-embeddings-v3.
    let code = "jinaai/xlm-roberta-flash-implementation--";
    let of_code = json!({"architectures": ["XLMRobertaModel"], "position_embedding_type": "rotary", "rotary_emb_base": 20000.0,
        "auto_map": {"AutoConfig": format!("{code}configuration_xlm_roberta.XLMRobertaFlashConfig"),
            "AutoModel": format!("{code}modeling_lora.XLMRobertaLoRA")},
        "lora_adaptations": ["retrieval.query", "separation", "text-matching"], "lora_alpha": alpha, "lora_rank": rank,
        "lora_dropout_p": 0.0, "lora_main_params_trainable": false, "load_trained_adapters": true, "emb_pooler": null,
        "matryoshka_dimensions": [4, 12], "use_flash_attn": true, "truncate_dim": null, "output_past": true});
    keys.extend(of_code.as_object().unwrap().clone());
    let expected = states(&port, &plain, None).unwrap();
    assert_eq!(states(&config, &original, None).unwrap(), expected);
    for (task, name) in ["retrieval.query", "separation", "text-matching"]
        .iter()
        .enumerate()
    {
        let found = states(&config, &original, Some(name)).unwrap();
        let merged = states(&port, &of_tasks[task], None).unwrap();
        assert!(
            found
                .iter()
                .zip(&expected)
                .any(|(a, b)| (a - b).abs() > 0.1),
            "{name}"
        );
        let worst = found
            .iter()
            .zip(&merged)
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f32::max);
        assert!(worst < 1e-5, "{name}: {worst}");
    }
    let refused = states(&config, &original, Some("retrieval.qury"));
    assert_says(
        refused.unwrap_err(),
        &[
            "lora_adaptations",
            "\"retrieval.qury\"",
            "retrieval.query, separation, text-matching",
            "no folder",
        ],
    );
    keyed_rank_is_checked(&config, &original);
}

fn keyed_rank_is_checked(config: &Value, tensors: &[(String, Tensor)]) {
    let mut config = config.clone();
    config["lora_adaptations"] = json!(["separation"]);
    let refused = states(&config, tensors, Some("separation"))
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("lora_A") || refused.contains("lora_B"),
        "{refused}"
    );
}

/// Jina Reranker v2 has the names of the same code, and XLM-RoBERTa's positions. transformers judges the committed classifier.
#[test]
fn the_authors_own_files_of_jina_s_reranker_are_those_of_xlm_roberta() {
    if !is_present("heads") {
        return;
    }
    let source = weights("heads/roberta-sequence_classification");
    let checkpoint = Checkpoint::open(&source).unwrap();
    let files = checkpoint.files();
    let names = [
        ("encoder.layer.", "encoder.layers."),
        ("embeddings.LayerNorm", "emb_ln"),
        ("attention.output.dense", "mixer.out_proj"),
        ("attention.output.LayerNorm", "norm1"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
        ("output.LayerNorm", "norm2"),
    ];
    let own = |name: &str| {
        let replaced = |name: String, (from, to): &(&str, &str)| name.replace(from, to);
        names.iter().fold(name.to_string(), replaced)
    };
    let mut tensors = Vec::new();
    for name in files.names().filter(|name| !name.ends_with("position_ids")) {
        let read = |of: &str| files.read(&name.replace(".query.", of)).unwrap();
        if name.contains(".self.query.") {
            let parts = [".query.", ".key.", ".value."].map(read);
            let name = own(name).replace("attention.self.query", "mixer.Wqkv");
            tensors.push((name, Tensor::cat(&parts, 0).unwrap()));
        } else if !name.contains(".self.") {
            tensors.push((own(name), files.read(name).unwrap()));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    write_safetensors(folder.path().join("model.safetensors"), &tensors, None).unwrap();
    let text = fs::read_to_string(source.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    let keys = json!({"model_type": "xlm-roberta", "architectures": ["XLMRobertaForSequenceClassification"], "use_flash_attn": false,
        "auto_map": {"AutoConfig": "configuration_xlm_roberta.XLMRobertaFlashConfig",
            "AutoModelForSequenceClassification": "modeling_xlm_roberta.XLMRobertaForSequenceClassification"},
        "position_embedding_type": "absolute"});
    config
        .as_object_mut()
        .unwrap()
        .extend(keys.as_object().unwrap().clone());
    let path = folder.path().join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    let logits = |folder: &Path| {
        let model = Checkpoint::open(folder).unwrap();
        let model = model
            .load(Weights::Dense(DType::F32, &Device::Cpu))
            .model()
            .unwrap();
        // A token for padding: positions count the others.
        let ids = Tensor::new(&[[2u32, 3, 1, 5, 6, 3]], &Device::Cpu).unwrap();
        let output = model.forward(&ModelInput::tokens(&ids)).unwrap();
        output.logits.unwrap().to_vec2::<f32>().unwrap()
    };
    assert_eq!(logits(folder.path()), logits(&source));
    let report = Checkpoint::open(folder.path()).unwrap().report();
    assert!(
        report.unused.is_empty() && report.missing.is_empty(),
        "{report:?}"
    );
    config["position_embedding_type"] = json!("alibi");
    fs::write(&path, config.to_string()).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert_says(error, &["position_embedding_type", "alibi", "absolute"]);
}
