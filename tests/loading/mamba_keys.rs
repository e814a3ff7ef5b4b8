//! The keys of Falcon-H1, Mamba and Jamba that choose widths, layers and factors, and refused values.

use candle_blocks::{
    Architecture, Result,
    config::{HybridHeadsConfig, Mamba2Norm, MambaConfig, MixerConfig},
};
use serde_json::{Value, json};

use crate::opened::opened_with;
use crate::said::assert_says;

/// Opens a small Falcon-H1 with these changes.
fn falcon(changes: Value) -> Result<Architecture> {
    let config = json!({
        "model_type": "falcon_h1", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 99,
        "num_attention_heads": 2, "num_key_value_heads": 1, "mamba_n_heads": 4, "mamba_d_ssm": 24, "mamba_d_state": 4,
    });
    opened_with(config, changes)
}

fn heads(changes: Value) -> HybridHeadsConfig {
    let stack = falcon(changes).unwrap().config;
    match &stack.blocks[0].mixer {
        MixerConfig::HybridHeads(heads) => (**heads).clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn factors_are_folded_where_the_formula_allows_it() {
    let plain = heads(json!({}));
    assert_eq!([plain.mamba.n_heads, plain.mamba.head_dim], [4, 6]);
    assert_eq!(plain.mamba.norm, Mamba2Norm::Absent);
    let given = json!({
        "attention_in_multiplier": 0.5, "key_multiplier": 3.0, "attention_out_multiplier": 5.0, "ssm_in_multiplier": 2.0,
        "ssm_multipliers": [1.0, 2.0, 3.0, 4.0, 5.0], "mamba_rms_norm": true,
    });
    let found = heads(given);
    assert_eq!(found.attention.scale, plain.attention.scale * 0.25 * 3.0);
    assert_eq!(found.attention_multiplier, 2.5);
    let factors = found.mamba.multipliers;
    let all = [
        factors.gate,
        factors.value,
        factors.key,
        factors.query,
        factors.step,
    ];
    assert_eq!(all, [2.0, 4.0, 6.0, 8.0, 10.0]);
    assert_eq!(found.mamba.norm, Mamba2Norm::BeforeGate);
}

#[test]
fn a_width_of_its_own_or_one_by_the_models() {
    let by_model = heads(json!({"mamba_d_ssm": null}));
    assert_eq!(by_model.mamba.head_dim, 8);
}

#[test]
fn values_of_falcon_without_a_meaning_are_refused_by_their_key() {
    let refused: [(Value, &[&str]); 4] = [
        (
            json!({"ssm_multipliers": [1.0, 2.0]}),
            &["\"ssm_multipliers\"", "expected 5 factors", "found 2"],
        ),
        (
            json!({"attention_in_multiplier": 2.0, "attention_bias": true}),
            &["\"attention_bias\""],
        ),
        (json!({"projectors_bias": true}), &["\"projectors_bias\""]),
        (
            json!({"mamba_d_head": 5}),
            &["\"mamba_d_head\"", "4 heads of 5", "24 wide"],
        ),
    ];
    for (changes, words) in refused {
        assert_says(falcon(changes).unwrap_err(), words);
    }
}

/// Opens a small Jamba with these changes.
fn jamba(changes: Value) -> Result<Architecture> {
    let config = json!({
        "model_type": "jamba", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 9, "vocab_size": 99,
        "num_attention_heads": 2, "num_key_value_heads": 1, "mamba_d_state": 4, "num_experts": 4,
    });
    opened_with(config, changes)
}

#[test]
fn periods_and_offsets_choose_the_layers() {
    let letters = |changes: Value| -> String {
        let stack = jamba(changes).unwrap().config;
        let letter = |block: &candle_blocks::BlockConfig| match &block.mixer {
            MixerConfig::Mamba(_) if block.feed_forward.experts.is_some() => 'E',
            MixerConfig::Mamba(_) => 'M',
            _ if block.feed_forward.experts.is_some() => 'A',
            _ => '*',
        };
        stack.blocks.iter().map(letter).collect()
    };
    assert_eq!(letters(json!({})), "MEME*EMEM");
    let given = json!({"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 0});
    assert_eq!(letters(given), "E*EMAME*E");
    assert_eq!(letters(json!({"num_experts": 1})), "MMMM*MMMM");
}

#[test]
fn the_width_of_steps_follows_from_the_models() {
    let rank = |changes: Value| {
        let stack = jamba(changes).unwrap().config;
        let MixerConfig::Mamba(MambaConfig { step_rank, .. }) = stack.blocks[0].mixer else {
            panic!("{:?}", stack.blocks[0].mixer)
        };
        step_rank
    };
    assert_eq!(rank(json!({})), 1);
    assert_eq!(rank(json!({"mamba_dt_rank": "auto"})), 1);
    assert_eq!(rank(json!({"mamba_dt_rank": 5})), 5);
}

#[test]
fn values_of_jamba_without_a_meaning_are_refused_by_their_key() {
    let refused: [(Value, &[&str]); 3] = [
        (
            json!({"attn_layer_offset": 8}),
            &["\"attn_layer_offset\"", "found 8", "attn_layer_period"],
        ),
        (
            json!({"expert_layer_period": 0}),
            &["\"expert_layer_period\"", "found 0"],
        ),
        (json!({"mamba_proj_bias": true}), &["\"mamba_proj_bias\""]),
    ];
    for (changes, words) in refused {
        assert_says(jamba(changes).unwrap_err(), words);
    }
}
