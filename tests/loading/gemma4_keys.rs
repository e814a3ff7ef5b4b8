//! Gemma 4's keys for single layers, and refused values.

use candle_blocks::config::{ExpertBranch, RotaryScaling};
use candle_blocks::{Architecture, Position, Result};
use serde_json::{Value, json};

use crate::opened::opened_with;

/// Opens a small text model with the Hub's spelling of keys and these changes.
fn text(changes: Value) -> Result<Architecture> {
    let config = json!({
        "model_type": "gemma4_text", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 12, "head_dim": 8,
        "global_head_dim": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 99,
        "vocab_size_per_layer_input": 99, "hidden_size_per_layer_input": 4, "num_kv_shared_layers": 6,
        "use_double_wide_mlp": true, "sliding_window": 7,
    });
    opened_with(config, changes)
}

#[test]
fn each_sixth_layer_is_global_and_the_last_share_keys_with_their_kind() {
    let stack = text(json!({})).unwrap().config;
    for (i, block) in stack.blocks.iter().enumerate() {
        let (attention, is_global) = (block.attention().unwrap(), i == 5 || i == 11);
        assert_eq!(attention.window, (!is_global).then_some(7), "{i}");
        assert_eq!(attention.head_dim, if is_global { 16 } else { 8 }, "{i}");
        let keys_of = if is_global { 5 } else { 4 };
        assert_eq!(attention.shared_keys, (i >= 6).then_some(keys_of), "{i}");
        assert_eq!(block.feed_forward.d_ff, if i >= 6 { 96 } else { 48 }, "{i}");
        let Position::Rotary(rotary) = &attention.position else {
            panic!("{:?}", attention.position)
        };
        let quarter = RotaryScaling::Proportional {
            n_turning: 2,
            factor: 1.0,
        };
        let (theta, scaling) = match is_global {
            true => (1e6, quarter),
            false => (1e4, RotaryScaling::None),
        };
        assert_eq!((rotary.theta, &rotary.scaling), (theta, &scaling), "{i}");
    }
}

/// transformers writes them with leading zeros, as many digits as the last layer's index.
#[test]
fn layer_indices_may_have_leading_zeros() {
    let each = json!({"03": {"head_dim": 12}, "11": {"head_dim": 20, "num_key_value_heads": 1}});
    let keys = json!({"per_layer_config": each, "num_kv_shared_layers": 0});
    let stack = text(keys).unwrap().config;
    for (i, block) in stack.blocks.iter().enumerate() {
        let of = (
            block.attention().unwrap().head_dim,
            block.attention().unwrap().n_kv_heads,
        );
        let expected = match i {
            3 => (12, 2),
            11 => (20, 1),
            _ => (8, 2),
        };
        assert_eq!(of, expected, "{i}");
    }
}

#[test]
fn values_are_keys_where_attention_is_global() {
    let keys = json!({"attention_k_eq_v": true, "num_global_key_value_heads": 1, "num_kv_shared_layers": 0});
    let stack = text(keys).unwrap().config;
    for (i, block) in stack.blocks.iter().enumerate() {
        let (attention, is_global) = (block.attention().unwrap(), i == 5 || i == 11);
        assert_eq!(attention.values_are_keys, is_global, "{i}");
        assert_eq!(attention.n_kv_heads, if is_global { 1 } else { 2 }, "{i}");
    }
}

#[test]
fn experts_are_beside_a_shared_one_with_the_width_of_the_feed_forward() {
    let keys = json!({"enable_moe_block": true, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 5});
    let stack = text(keys).unwrap().config;
    for (i, block) in stack.blocks.iter().enumerate() {
        let experts = block.feed_forward.experts.unwrap();
        let shared = experts.shared.unwrap();
        assert_eq!((experts.n_experts, experts.routing.top_k), (6, 2), "{i}");
        assert_eq!(shared.d_ff, if i >= 6 { 96 } else { 48 }, "{i}");
        assert_eq!(block.feed_forward.d_ff, 5, "{i}");
        let norm = block.norm;
        assert_eq!(experts.branch, ExpertBranch::Normalized { norm }, "{i}");
    }
}

#[test]
fn unsupported_block_features_are_refused_by_key() {
    for (changes, key) in [
        (json!({"enable_moe_block": true}), "top_k_experts"),
        (
            json!({"use_bidirectional_attention": "all"}),
            "use_bidirectional_attention",
        ),
        (
            json!({"per_layer_config": {"1": {"intermediate_size": 3}}}),
            "intermediate_size",
        ),
        (
            json!({"per_layer_config": {"12": {"head_dim": 4}}}),
            "per_layer_config",
        ),
        // No layer before has the keys.
        (json!({"num_kv_shared_layers": 12}), "keys of layer"),
        (json!({"num_kv_shared_layers": 8}), "keys of layer"),
    ] {
        let error = text(changes.clone()).unwrap_err().to_string();
        assert!(error.contains(key), "{changes}: {error}");
    }
}
