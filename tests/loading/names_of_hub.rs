//! Types of code on the Hub that compute as another type, which transformers' values judge: the same bits under their own keys and
//! names.

use std::fs;

use candle_blocks::Checkpoint;
use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::write::write_safetensors;
use candle_blocks::model::ModelInput;
use serde_json::{Value, json};
use tempfile::TempDir;

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
    let model = checkpoint.model(DType::F32, &Device::Cpu).unwrap();
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
