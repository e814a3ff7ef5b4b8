//! Mamba-2's keys in hybrids, and refused values.

use candle_blocks::{Architecture, Result, config::MixerConfig};
use serde_json::{Value, json};

use crate::opened::opened_with;
use crate::said::assert_says;

/// Opens a small Bamba, without `mamba_d_head`, with these changes.
fn bamba(changes: Value) -> Result<Architecture> {
    let config = json!({
        "model_type": "bamba", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 99,
        "num_attention_heads": 2, "num_key_value_heads": 1, "mamba_n_heads": 8, "mamba_d_state": 4,
    });
    opened_with(config, changes)
}

#[test]
fn a_heads_width_follows_from_the_others() {
    for changes in [
        json!({}),
        json!({"mamba_d_head": null}),
        json!({"mamba_d_head": "auto"}),
        json!({"mamba_d_head": 4}),
    ] {
        let stack = bamba(changes).unwrap().config;
        let MixerConfig::Mamba2(mamba) = &stack.blocks[0].mixer else {
            panic!("{:?}", stack.blocks[0].mixer)
        };
        assert_eq!([mamba.n_heads, mamba.head_dim], [8, 4]);
    }
}

#[test]
fn steps_are_bounded_as_transformers_writes_it() {
    let bounds = |limits: Value| {
        let stack = bamba(json!({"time_step_limit": limits})).unwrap().config;
        match stack.blocks[0].mixer {
            MixerConfig::Mamba2(mamba) => (mamba.min_step, mamba.max_step),
            _ => panic!("{:?}", stack.blocks[0].mixer),
        }
    };
    assert_eq!(bounds(Value::Null), (0.0, None));
    assert_eq!(bounds(json!([0.5, 2.0])), (0.5, Some(2.0)));
    let infinity = json!([0.5, {"__float__": "Infinity"}]);
    assert_eq!(bounds(infinity), (0.5, None));
}

#[test]
fn values_without_a_meaning_are_refused_by_their_key() {
    let refused: [(Value, &[&str]); 6] = [
        (
            json!({"mamba_n_heads": 0}),
            &["\"mamba_n_heads\"", "found 0", "positive"],
        ),
        (
            json!({"mamba_d_head": 5}),
            &["\"mamba_d_head\"", "8 heads of 5", "32 wide"],
        ),
        (
            json!({"mamba_n_groups": 3}),
            &["8 heads of Mamba-2 in 3 groups", "multiple"],
        ),
        (
            json!({"time_step_limit": [1.0]}),
            &["\"time_step_limit\"", "a smallest and a largest"],
        ),
        (
            json!({"time_step_limit": [2.0, 1.0]}),
            &["steps of Mamba-2 from 2 to 1"],
        ),
        (json!({"mamba_proj_bias": true}), &["\"mamba_proj_bias\""]),
    ];
    for (changes, words) in refused {
        assert_says(bamba(changes).unwrap_err(), words);
    }
}
