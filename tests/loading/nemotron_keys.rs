//! Nemotron-H's keys for the kinds of its layers, and refused values.

use candle_blocks::{Architecture, BlockConfig, FeedForwardConfig, NormConfig, Result};
use candle_blocks::{FeedForwardForm, NormPlacement, config::MixerConfig};
use serde_json::{Value, json};

use crate::opened::opened_with;
use crate::said::assert_says;

/// Opens a small Nemotron-H with these changes.
fn nemotron(changes: Value) -> Result<Architecture> {
    let config = json!({
        "model_type": "nemotron_h", "hidden_size": 16, "intermediate_size": 24, "vocab_size": 99, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "mamba_num_heads": 4, "mamba_head_dim": 3, "n_groups": 2,
        "ssm_state_size": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 5, "moe_shared_expert_intermediate_size": 6,
    });
    opened_with(config, changes)
}

/// Returns a letter for each layer.
fn letters(of: &Architecture) -> String {
    let letter = |block: &BlockConfig| match (&block.mixer, block.feed_forward.experts) {
        (MixerConfig::Mamba2(_), None) => 'M',
        (MixerConfig::Attention(_), None) => '*',
        (MixerConfig::Absent { .. }, None) => '-',
        (MixerConfig::Absent { .. }, Some(_)) => 'E',
        other => panic!("{other:?}"),
    };
    of.config.blocks.iter().map(letter).collect()
}

#[test]
fn layers_are_listed_by_names_or_by_letters() {
    for (changes, expected) in [
        (json!({"hybrid_override_pattern": "M-M*E"}), "M-M*E"),
        (
            json!({"layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"]}),
            "ME*-",
        ),
        (json!({"layers_block_type": ["mamba", "attention"]}), "M*"),
        // The names come first, and the number of layers is theirs.
        (
            json!({"layers_block_type": ["mlp", "mamba"], "hybrid_override_pattern": "MM*", "num_hidden_layers": 3}),
            "-M",
        ),
        (json!({}), "ME*-"),
    ] {
        let architecture = nemotron(changes.clone()).unwrap();
        assert_eq!(letters(&architecture), expected, "{changes}");
    }
}

#[test]
fn values_without_a_meaning_are_refused_by_their_key() {
    let refused: [(Value, &[&str]); 7] = [
        (
            json!({"hybrid_override_pattern": "MX"}),
            &["\"hybrid_override_pattern\"", "'X'", "M, *, - and E"],
        ),
        (
            json!({"layers_block_type": ["mlp", "conv"]}),
            &["\"layers_block_type\"", "\"conv\"", "\"moe\""],
        ),
        (
            json!({"layers_block_type": ["mamba2", "mlp"]}),
            &["\"layers_block_type\"", "\"mamba2\""],
        ),
        (
            json!({"layers_block_type": []}),
            &["\"layers_block_type\"", "no layers"],
        ),
        (json!({"moe_latent_size": 0}), &["latent width", "0"]),
        (json!({"mlp_bias": true}), &["\"mlp_bias\"", "true"]),
        (json!({"use_bias": true}), &["\"use_bias\"", "true"]),
    ];
    for (changes, words) in refused {
        let error = nemotron(changes).unwrap_err();
        assert_says(&error, words);
    }
}

#[test]
fn a_block_has_a_mixer_or_a_feed_forward_and_nothing_of_an_absent_one() {
    let norm = NormConfig::rms_norm(16, 1e-5);
    let fed = || BlockConfig::of_feed_forward(FeedForwardConfig::new(16), norm);
    fed().validate().unwrap();
    let mut wrong = [fed(), fed(), fed()];
    wrong[0].attention_placement = NormPlacement::Pre;
    wrong[1].residual.layer_scale = true;
    wrong[2].feed_forward = FeedForwardConfig::absent(16);
    for block in wrong {
        let error = block.validate().unwrap_err();
        assert_says(&error, &["one sublayer", "BlockConfig::of_mixer"]);
    }
    let mut absent = FeedForwardConfig::new(16);
    absent.form = FeedForwardForm::Absent;
    let error = absent.validate().unwrap_err();
    assert_says(
        &error,
        &["absent feed-forward", "FeedForwardConfig::absent"],
    );
}
