//! Files of code on the Hub that need more than the crate has, and their reasons; docs/families.md lists those that load.

use std::fs;

use candle_blocks::candle_core::{DType, Device};
use candle_blocks::config::TwoStackKind;
use candle_blocks::model::{Model, Seq2Seq, TwoTowers};
use candle_blocks::{CheckpointOptions, train::Fresh};
use serde_json::{Map, Value, json};

use crate::of_transformers::answer;
use crate::weights::weights;

/// `weights/sweep/published.py` compares them with transformers.
#[test]
fn configurations_as_published_load() {
    let files = files("published_configs.json");
    let folder = tempfile::tempdir().unwrap();
    assert!(files.len() > 100);
    for (name, config) in &files {
        assert_eq!(answer(config, folder.path()), "loads", "{name}");
        let noted: &[&str] = match name.as_str() {
            // vLLM computes attention in chunks for texts longer than those; transformers does not read the key.
            "qwen2.5-1m" => &["dual_chunk_attention_config"],
            _ => &[],
        };
        assert_eq!(unread(config), noted, "{name}");
    }
}

/// Returns configurations by their names.
fn files(name: &str) -> Map<String, Value> {
    let text = fs::read_to_string(weights(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the keys that are not read, of a new checkpoint with this `config.json`.
fn unread(config: &Value) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    let options = CheckpointOptions::default().whole();
    let architecture = options.clone().architecture(path).unwrap();
    let start = architecture.initialization.clone();
    let fresh = Fresh::new(start, 1, DType::F32, &Device::Cpu);
    let config = architecture.model_config().unwrap();
    let vb = fresh.var_builder();
    match architecture.second_stack().unwrap() {
        None => drop(Model::new(config, vb).unwrap()),
        Some(second) => match second.kind {
            TwoStackKind::EncoderDecoder { .. } => drop(Seq2Seq::new(config, second, vb).unwrap()),
            _ => drop(TwoTowers::new(config, second, vb).unwrap()),
        },
    }
    let checkpoint = folder.path().join("checkpoint");
    let parameters = fresh.parameters();
    architecture.save(&checkpoint, parameters, &[]).unwrap();
    options.open(checkpoint).unwrap().report().unread_keys
}

/// The file of gte-Qwen2-1.5B-instruct is the published one of revision 1cad2ab3: its contents have the same SHA-256.
#[test]
fn files_of_the_hub_say_all_that_a_model_needs() {
    let files = files("hub_configs.json");
    let folder = tempfile::tempdir().unwrap();
    assert!(files.len() > 20);
    for (name, config) in &files {
        assert_eq!(answer(config, folder.path()), "loads", "{name}");
    }
}

/// Each is a published file with one key changed, whose refusal names the last text.
#[test]
fn settings_that_the_crate_lacks_are_refused_by_their_keys() {
    let mut files = files("hub_configs.json");
    files.extend(self::files("published_configs.json"));
    let folder = tempfile::tempdir().unwrap();
    for (file, key, value, named) in [
        (
            "minimax-m2",
            "attn_type_list",
            json!([1, 0]),
            "only 1, for softmax attention",
        ),
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

/// Qwen 1 changes its scores and its rotation after `seq_length` positions, and the mask of copies of gte-Qwen2 without `is_causal`
/// is that of whatever code they name.
#[test]
fn settings_that_only_the_user_can_make_are_requested() {
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
}
