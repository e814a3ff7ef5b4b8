//! The keys of both Zambas for the kinds of their layers and their shared transformers, and refused values.

use candle_blocks::{Architecture, BlockConfig, Result};
use serde_json::{Value, json};

use crate::opened::opened_with;
use crate::said::assert_says;

/// Opens a small Zamba 2 with these changes.
fn zamba(changes: Value) -> Result<Architecture> {
    let config = json!({
        "model_type": "zamba2", "hidden_size": 16, "intermediate_size": 24, "vocab_size": 99, "num_attention_heads": 2,
        "n_mamba_heads": 4, "mamba_d_state": 3, "num_hidden_layers": 4, "num_mem_blocks": 2,
        "layers_block_type": ["hybrid", "linear_attention", "hybrid", "hybrid"],
    });
    opened_with(config, changes)
}

/// Returns the block whose transformer each layer runs.
fn run(of: &Architecture) -> Vec<Option<usize>> {
    let block = |block: &BlockConfig| Some(block.own.zamba()?.transformer.as_ref()?.block);
    of.config.blocks.iter().map(block).collect()
}

#[test]
fn layers_run_one_transformer_after_the_other() {
    let mut published = [None; 54];
    for (i, at) in [6, 12, 18, 24, 30, 36, 42, 47, 51].into_iter().enumerate() {
        published[at] = Some([6, 12][i % 2]);
    }
    for (changes, expected) in [
        (json!({}), vec![Some(0), None, Some(2), Some(0)]),
        (
            json!({"num_mem_blocks": 1}),
            vec![Some(0), None, Some(0), Some(0)],
        ),
        (
            json!({"tie_word_embeddings": false}),
            vec![Some(0), None, Some(2), Some(3)],
        ),
        // The older names of the published files.
        (
            json!({"layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"]}),
            vec![None, Some(1), None, Some(3)],
        ),
        // The class's own layers.
        (
            json!({"layers_block_type": null, "num_hidden_layers": 54}),
            published.to_vec(),
        ),
    ] {
        let architecture = zamba(changes.clone()).unwrap();
        assert_eq!(run(&architecture), expected, "{changes}");
    }
}

#[test]
fn values_without_a_meaning_are_refused_by_their_key() {
    let refused: [(Value, &[&str]); 7] = [
        (
            json!({"add_bias_linear": true}),
            &["\"add_bias_linear\"", "true"],
        ),
        (json!({"is_causal": false}), &["\"is_causal\"", "false"]),
        (
            json!({"num_mem_blocks": 0}),
            &["\"num_mem_blocks\"", "found 0"],
        ),
        (json!({"adapter_rank": 0}), &["rank", "adapters"]),
        (
            json!({"attention_head_dim": 7}),
            &["\"attention_head_dim\"", "7"],
        ),
        (
            json!({"mamba_headdim": 7}),
            &["\"mamba_headdim\"", "4 heads of 7"],
        ),
        (
            json!({"layers_block_type": ["hybrid", "attention", "hybrid", "hybrid"]}),
            &["\"layers_block_type\"", "\"full_attention\""],
        ),
    ];
    for (changes, words) in refused {
        assert_says(zamba(changes).unwrap_err(), words);
    }
}

/// Opens a small Zamba 1 with these changes.
fn first_zamba(changes: Value) -> Result<Architecture> {
    let config = json!({
        "model_type": "zamba", "hidden_size": 16, "intermediate_size": 24, "vocab_size": 99, "num_attention_heads": 2,
        "num_key_value_heads": 2, "n_mamba_heads": 2, "mamba_d_state": 3, "num_hidden_layers": 4,
        "layers_block_type": ["hybrid", "mamba", "hybrid", "hybrid"],
    });
    opened_with(config, changes)
}

#[test]
fn layers_of_the_first_zamba_run_one_transformer() {
    // The class's own layers: the third, and from the fourth on those at an offset in each period.
    let mut own = [None; 20];
    for at in [2, 7, 13, 19] {
        own[at] = Some(2);
    }
    let mut other = [None; 9];
    for at in [2, 4, 7] {
        other[at] = Some(2);
    }
    let absent = |n: usize| json!({"layers_block_type": null, "num_hidden_layers": n});
    let with_period = |mut of: Value| {
        of["attn_layer_period"] = json!(3);
        of["attn_layer_offset"] = json!(1);
        of
    };
    for (changes, expected) in [
        (json!({}), vec![Some(0), None, Some(0), Some(0)]),
        (
            json!({"tie_word_embeddings": false}),
            vec![Some(0), None, Some(2), Some(3)],
        ),
        (absent(20), own.to_vec()),
        (with_period(absent(9)), other.to_vec()),
    ] {
        let architecture = first_zamba(changes.clone()).unwrap();
        assert_eq!(run(&architecture), expected, "{changes}");
    }
    let refused: [(Value, &[&str]); 5] = [
        (json!({"is_causal": false}), &["\"is_causal\"", "false"]),
        (
            json!({"n_mamba_heads": 3}),
            &["n_heads of Mamba is 3", "32"],
        ),
        (
            json!({"hidden_mamba_act": "gelu"}),
            &["\"hidden_mamba_act\""],
        ),
        (json!({"mamba_proj_bias": true}), &["\"mamba_proj_bias\""]),
        (json!({"attn_layer_period": 0}), &["\"attn_layer_period\""]),
    ];
    for (changes, words) in refused {
        assert_says(first_zamba(changes).unwrap_err(), words);
    }
}
