//! Files of code on the Hub that need more than the crate has, and their reasons; docs/families.md lists those that load.

use std::fs;

use serde_json::{Map, Value, json};

use crate::of_transformers::answer;
use crate::weights::weights;

/// `weights/sweep/published.py` compares them with transformers.
#[test]
fn configurations_as_published_load() {
    let text = fs::read_to_string(weights("published_configs.json")).unwrap();
    let files: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let folder = tempfile::tempdir().unwrap();
    assert!(files.len() > 100);
    for (name, config) in &files {
        assert_eq!(answer(config, folder.path()), "loads", "{name}");
    }
}

/// Each is a published file with one key changed, whose refusal names the last text.
#[test]
fn settings_that_the_crate_lacks_are_refused_by_their_keys() {
    let text = fs::read_to_string(weights("hub_configs.json")).unwrap();
    let files: Map<String, Value> = serde_json::from_str(&text).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (file, key, value, named) in [
        (
            "jina-embeddings-v2-base-en",
            "feed_forward_type",
            json!("swiglu"),
            "feed_forward_type",
        ),
        (
            "nomic-embed-text-v2-moe",
            "activation_function",
            json!("swiglu"),
            "moe_every_n_layers",
        ),
        (
            "nomic-embed-text-v2-moe",
            "expert_choice_router",
            json!(true),
            "expert_choice_router",
        ),
        (
            "nomic-embed-text-v2-moe",
            "num_shared_experts",
            json!(1),
            "num_shared_experts",
        ),
        (
            "gte-base-en-v1.5",
            "logn_attention_scale",
            json!(true),
            "logn_attention_scale",
        ),
        (
            "internlm-7b",
            "rotary",
            json!({"base": 1e4, "type": "linear"}),
            "linear",
        ),
        (
            "Baichuan-7B",
            "max_position_embeddings",
            Value::Null,
            "max_position_embeddings",
        ),
        (
            "Baichuan-13B-Base",
            "max_position_embeddings",
            json!(4096),
            "max_position_embeddings",
        ),
        (
            "chatglm3-6b",
            "original_rope",
            json!(false),
            "original_rope",
        ),
        (
            "chatglm3-6b",
            "add_bias_linear",
            json!(true),
            "add_bias_linear",
        ),
        ("chatglm3-6b", "pre_seq_len", json!(128), "pre_seq_len"),
        ("XVERSE-13B", "num_experts", json!(64), "num_experts"),
        (
            "MiniCPM-2B-sft-bf16",
            "num_experts",
            json!(8),
            "num_experts",
        ),
        (
            "MiniCPM-2B-sft-bf16",
            "sparse_config",
            json!({}),
            "sparse_config",
        ),
    ] {
        let mut config = files[file].clone();
        assert_eq!(answer(&config, folder.path()), "loads", "{file}");
        config[key] = value;
        let said = answer(&config, folder.path());
        assert!(said.contains(named), "{file}, {key}: {said}");
    }
}

/// Qwen 1 changes its scores and its rotation after `seq_length` positions, and gte-Qwen2's code decides about the mask.
#[test]
fn settings_that_only_the_user_can_make_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = json!({"hidden_size": 12, "num_attention_heads": 3, "num_hidden_layers": 1, "intermediate_size": 8,
        "vocab_size": 11, "num_key_value_heads": 3});
    let with = |keys: Value| {
        let mut config = sizes.clone();
        config
            .as_object_mut()
            .unwrap()
            .extend(keys.as_object().unwrap().clone());
        answer(&config, folder.path())
    };
    let qwen = |ntk: bool, logn: bool| {
        with(json!({"model_type": "qwen", "use_dynamic_ntk": ntk, "use_logn_attn": logn}))
    };
    assert!(qwen(true, false).contains("use_dynamic_ntk"));
    assert!(qwen(false, true).contains("use_logn_attn"));
    assert_eq!(qwen(false, false), "loads");
    let auto_map = json!({"AutoModel": "modeling_qwen.Qwen2Model"});
    let said = with(json!({"model_type": "qwen2", "auto_map": auto_map}));
    assert!(said.contains("is_causal"), "{said}");
    let said = with(json!({"model_type": "qwen3", "use_bidirectional_attention": true}));
    assert!(said.contains("is_causal"), "{said}");
    let said = with(json!({"model_type": "qwen2", "auto_map": auto_map, "is_causal": false}));
    assert_eq!(said, "loads");
    let said = with(
        json!({"model_type": "baichuan", "vocab_size": 125_696, "architectures": ["BaichuanForCausalLM"]}),
    );
    assert_eq!(said, "loads, blocks only");
}
