//! Weights as Mistral's and Meta's own code has them, beside or instead of those of transformers. The names are those that
//! transformers' `convert_mistral_weights_to_hf.py` and `convert_llama_weights_to_hf.py` read.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use candle_blocks::candle_core::{Device, Tensor, safetensors};
use candle_blocks::{Checkpoint, Error};
use serde_json::json;

use crate::said::assert_says;
use crate::torch_from_safetensors::convert;
use crate::weights::{is_present, weights};

const FAMILY: &str = "families/mistral";

/// The name of a tensor in those files.
fn native(name: &str) -> String {
    let pairs = [
        ("model.", ""),
        ("self_attn.q_proj", "attention.wq"),
        ("self_attn.k_proj", "attention.wk"),
        ("self_attn.v_proj", "attention.wv"),
        ("self_attn.o_proj", "attention.wo"),
        ("mlp.gate_proj", "feed_forward.w1"),
        ("mlp.down_proj", "feed_forward.w2"),
        ("mlp.up_proj", "feed_forward.w3"),
        ("post_attention_layernorm", "ffn_norm"),
        ("input_layernorm", "attention_norm"),
        ("embed_tokens", "tok_embeddings"),
        ("lm_head", "output"),
    ];
    pairs
        .iter()
        .fold(name.to_string(), |name, (of, to)| name.replace(of, to))
}

/// Writes such weights, and the sizes that belong to them.
fn write(folder: &Path) {
    let path = weights(FAMILY).join("model.safetensors");
    let tensors = safetensors::load(path, &Device::Cpu).unwrap();
    let renamed = tensors
        .iter()
        .map(|(name, tensor)| (native(name), tensor.clone()));
    let renamed: HashMap<String, Tensor> = renamed.collect();
    assert!(renamed.contains_key("layers.0.attention.wq.weight"));
    safetensors::save(&renamed, folder.join("consolidated.safetensors")).unwrap();
    let sizes = json!({"dim": 12, "n_layers": 2, "head_dim": 6, "hidden_dim": 21, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 2e-3,
        "vocab_size": 11});
    fs::write(folder.join("params.json"), sizes.to_string()).unwrap();
}

fn refusal(path: &Path) -> String {
    let error = Checkpoint::open(path).unwrap_err();
    assert!(matches!(error, Error::NoWeights { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn files_of_transformers_come_before_those_of_the_publisher() {
    if !is_present(FAMILY) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let plain = Checkpoint::open(weights(FAMILY)).unwrap();
    let config = weights(FAMILY).join("config.json");
    fs::copy(config, folder.path().join("config.json")).unwrap();
    let single = folder.path().join("model.safetensors");
    fs::copy(weights(FAMILY).join("model.safetensors"), &single).unwrap();
    let opened = || {
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(checkpoint.config(), plain.config());
        let [found, expected] = [&checkpoint, &plain].map(|checkpoint| {
            let report = checkpoint.report();
            (
                report.missing.clone(),
                report.unused.clone(),
                report.used.len(),
            )
        });
        assert_eq!(found, expected);
    };
    opened();
    // As in Mistral's repositories: shards with an index.
    let names = plain.files().names();
    let shard = "model-00001-of-00001.safetensors";
    let map: serde_json::Map<_, _> = names.map(|name| (name.to_string(), json!(shard))).collect();
    let index = json!({ "weight_map": map }).to_string();
    fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    fs::rename(single, folder.path().join(shard)).unwrap();
    opened();
}

#[test]
fn files_of_the_publisher_alone_are_refused_with_the_cure() {
    if !is_present(FAMILY) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    write(folder.path());
    let file = folder.path().join("consolidated.safetensors");
    let words = [
        "params.json",
        "not supported",
        "model.safetensors",
        "transformers 4.46.3",
        "convert_mistral_weights_to_hf --is_v3`",
        "convert_llama_weights_to_hf`",
    ];
    assert_says(refusal(folder.path()), &words);
    assert_says(refusal(&file), &words);
    // The configuration of transformers does not make these its weights.
    let config = folder.path().join("config.json");
    fs::copy(weights(FAMILY).join("config.json"), &config).unwrap();
    assert_says(refusal(folder.path()), &words);
    fs::remove_file(config).unwrap();
    // As Llama's `original` folder, of one rank and of two.
    let [first, second] =
        ["00", "01"].map(|rank| folder.path().join(format!("consolidated.{rank}.pth")));
    convert(&file, &first);
    assert_says(refusal(folder.path()), &words);
    fs::copy(first, second).unwrap();
    assert_says(refusal(folder.path()), &words);
    assert_says(
        refusal(folder.path()),
        &["consolidated.00.pth, consolidated.01.pth"],
    );
}
