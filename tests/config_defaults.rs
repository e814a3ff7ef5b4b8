//! What a `config.json` that says little means: the defaults of transformers 5.23's configuration classes.

use std::fs;

use candle_blocks::{Architecture, CheckpointOptions, StackPart};
use serde_json::json;

/// Published files hold of each tower what differs from the class: SigLIP's base model says nothing at all.
#[test]
fn a_tower_without_sizes_has_those_of_its_class() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for (family, part, [d_model, d_ff, n_heads]) in [
        ("siglip", StackPart::Text, [768, 3072, 12]),
        ("siglip", StackPart::Vision, [768, 3072, 12]),
        ("clip", StackPart::Text, [512, 2048, 8]),
        ("clip", StackPart::Vision, [768, 3072, 12]),
    ] {
        let json = json!({
            "model_type": family,
            "text_config": {"model_type": format!("{family}_text_model")},
            "vision_config": null,
        });
        fs::write(&path, json.to_string()).unwrap();
        let options = CheckpointOptions::default().part(part);
        let stack = options.architecture(&path).unwrap().config;
        let block = &stack.blocks[0];
        assert_eq!(block.d_model(), d_model, "{family} {part}");
        assert_eq!(block.feed_forward.d_ff, d_ff, "{family} {part}");
        assert_eq!(block.attention.n_heads, n_heads, "{family} {part}");
        assert_eq!(stack.blocks.len(), 12, "{family} {part}");
    }
}

/// `int(i / (num_hidden_layers / num_hidden_groups))` of transformers' `AlbertTransformer` in Python: layer 9 is 6, not 7.
#[test]
fn alberts_groups_are_those_of_the_rounded_quotient() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let json = json!({"model_type": "albert", "hidden_size": 4, "num_attention_heads": 2, "intermediate_size": 6,
        "num_hidden_layers": 18, "num_hidden_groups": 14});
    fs::write(&path, json.to_string()).unwrap();
    let stack = Architecture::open(&path).unwrap().config;
    let expected = [0, 0, 1, 2, 3, 3, 4, 5, 6, 6, 7, 8, 9, 10, 10, 11, 12, 13];
    assert_eq!(stack.layers, expected);
}

/// Defaults of the configuration classes, which are not those of Llama's.
#[test]
fn absent_heads_are_those_of_each_class() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for (family, n_kv_heads, head_dim) in [
        ("llama", 32, 2),
        ("mistral", 8, 2),
        ("qwen2", 32, 2),
        ("qwen3", 32, 128),
        ("gemma", 16, 256),
        ("gemma2", 4, 256),
        ("gemma3_text", 4, 256),
        ("starcoder2", 2, 2),
        ("stablelm", 32, 2),
    ] {
        let json = json!({"model_type": family, "hidden_size": 64, "num_attention_heads": 32,
            "intermediate_size": 6, "num_hidden_layers": 1, "partial_rotary_factor": 1.0});
        fs::write(&path, json.to_string()).unwrap();
        let stack = Architecture::open(&path).unwrap_or_else(|e| panic!("{family}: {e}"));
        let attention = &stack.config.blocks[0].attention;
        assert_eq!(attention.n_kv_heads, n_kv_heads, "{family}");
        assert_eq!(attention.head_dim, head_dim, "{family}");
    }
}
