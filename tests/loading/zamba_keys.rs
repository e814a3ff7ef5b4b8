//! Zamba 2's keys for the kinds of its layers and their shared transformers, and refused values.

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
