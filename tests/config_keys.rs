//! Keys of `config.json` that are absent, null, or ask for what no block has, family by family.
//!
//! What absent keys mean is what the defaults of transformers 5.23's configuration classes say.

mod common;

use std::fs;

use candle_blocks::{Checkpoint, Position, Result, RotaryConfig, StackConfig};
use common::committed;
use serde_json::{Map, Value, json};

/// A family's committed checkpoint under its configuration changed; `None` in the package, which
/// leaves the families out.
fn open(name: &str, change: impl FnOnce(&mut Map<String, Value>)) -> Option<Result<Checkpoint>> {
    let name = format!("families/{name}");
    let stack = committed::families().into_iter().find(|s| s.name == name)?;
    let text = fs::read_to_string(stack.folder().join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    change(config.as_object_mut().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    Some(stack.options().config(path).open(stack.folder()))
}

/// The configuration that comes of `keys`, of which null stands for an absent one.
fn config(name: &str, keys: &[(&str, Value)]) -> Option<StackConfig> {
    let opened = open(name, |config| {
        for (key, value) in keys {
            match value {
                Value::Null => drop(config.remove(*key)),
                value => drop(config.insert(key.to_string(), value.clone())),
            }
        }
    })?;
    Some(
        opened
            .unwrap_or_else(|e| panic!("{name}: {e}"))
            .config()
            .clone(),
    )
}

fn windows(stack: &StackConfig) -> Vec<Option<usize>> {
    let blocks = stack.blocks.iter();
    blocks.map(|block| block.attention.window).collect()
}

#[test]
fn absent_keys_have_the_defaults_of_transformers() {
    let absent = |name: &str, keys: &[&str]| {
        let keys: Vec<(&str, Value)> = keys.iter().map(|&key| (key, Value::Null)).collect();
        config(name, &keys)
    };
    if let Some(mistral) = absent("mistral", &["sliding_window"]) {
        assert_eq!(mistral.blocks[0].attention.window, Some(4096));
    }
    if let Some(gemma2) = absent("gemma2", &["sliding_window", "attn_logit_softcapping"]) {
        assert_eq!(gemma2.blocks[0].attention.window, Some(4096));
        assert_eq!(gemma2.blocks[0].attention.soft_cap, Some(50.0));
    }
    for name in ["phi3", "mixtral", "olmo2"] {
        if let Some(stack) = absent(name, &["rms_norm_eps"]) {
            assert_eq!(stack.blocks[0].norm.eps, 1e-5, "{name}");
        }
    }
    let rotary = |name: &str| -> Option<RotaryConfig> {
        let keys = ["rope_theta", "rope_parameters", "rope_scaling"];
        match &absent(name, &keys)?.blocks[0].attention.position {
            Position::Rotary(rotary) => Some(rotary.clone()),
            other => panic!("{name}: {other:?}"),
        }
    };
    for (name, theta) in [("mixtral", 1e6), ("cohere", 5e5), ("llama", 1e4)] {
        if let Some(rotary) = rotary(name) {
            assert_eq!(rotary.theta, theta, "{name}");
        }
    }
}

#[test]
fn null_switches_a_sliding_window_off() {
    let opened = open("mistral", |config| {
        config.insert("sliding_window".to_string(), Value::Null);
    });
    if let Some(opened) = opened {
        assert_eq!(opened.unwrap().config().blocks[0].attention.window, None);
    }
}

#[test]
fn qwens_windows_are_in_the_layers_that_each_model_means() {
    let keys = [
        ("use_sliding_window", json!(true)),
        ("sliding_window", json!(3)),
        ("max_window_layers", json!(1)),
        ("layer_types", Value::Null),
    ];
    for (name, is_sliding) in [
        ("qwen2", (|i| i >= 1) as fn(usize) -> bool),
        ("qwen3", |i| i >= 1),
        ("qwen2_moe", |i| i == 0),
        ("qwen3_moe", |_| true),
    ] {
        if let Some(stack) = config(name, &keys) {
            let expected = (0..stack.blocks.len()).map(|i| is_sliding(i).then_some(3));
            assert_eq!(windows(&stack), expected.collect::<Vec<_>>(), "{name}");
        }
    }
}

#[test]
fn a_setting_that_no_block_has_is_an_error_that_names_it() {
    let settings = [
        ("roberta", "position_embedding_type", json!("relative_key")),
        ("albert", "inner_group_num", json!(2)),
        ("bart", "normalize_before", json!(true)),
        ("gemma", "hidden_activation", json!("relu")),
        ("gemma3_text", "use_bidirectional_attention", json!(true)),
        ("gptj", "rotary_dim", Value::Null),
        ("mpt", "norm_type", json!("rmsnorm")),
        ("mpt", "no_bias", json!(false)),
        ("nomic_bert-hub", "causal", json!(true)),
        ("nomic_bert-hub", "rotary_scaling_factor", json!(2.0)),
        ("opt", "layer_norm_elementwise_affine", json!(false)),
        (
            "phi3",
            "rope_scaling",
            json!({"type": "yarn", "factor": 4.0}),
        ),
        ("t5", "model_type", json!("umt5")),
    ];
    for (name, key, value) in settings {
        let opened = open(name, |config| {
            config.remove("rope_parameters");
            config.insert(key.to_string(), value);
        });
        let Some(opened) = opened else { continue };
        let text = opened.expect_err(name).to_string();
        let named = if key == "rope_scaling" { "type" } else { key };
        assert!(text.contains(&format!("key \"{named}\": ")), "{text}");
    }
}
