//! Partial rotary embeddings with an odd number of dimensions: rotated like in transformers, and refused where transformers
//! fails. The values are those in `families/gpt_neox-odd-rotary`.

use std::fs;

use candle_blocks::{Architecture, Position, Result, RotaryConfig};
use serde_json::{Value, json};

use crate::{message::message, said::assert_says};

/// Returns the first block's rotation, for heads of width six with half of them rotated, in a decoder with these additional
/// keys.
fn rotary(model_type: &str, own: Value) -> Result<RotaryConfig> {
    let mut keys = json!({
        "model_type": model_type, "hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 4,
        "intermediate_size": 20, "num_hidden_layers": 1, "max_position_embeddings": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5},
    });
    keys.as_object_mut()
        .unwrap()
        .extend(own.as_object().unwrap().clone());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    fs::write(&path, keys.to_string()).unwrap();
    match Architecture::open(path)?.config.blocks[0]
        .attention()
        .unwrap()
        .position
        .clone()
    {
        Position::Rotary(rotary) => Ok(rotary),
        other => panic!("{other:?}"),
    }
}

#[test]
fn four_dimensions_rotate_with_the_frequencies_of_three() {
    for model_type in ["gpt_neox", "phi3"] {
        let rotary = rotary(model_type, json!({})).unwrap();
        assert_eq!(
            (rotary.dim, rotary.frequency_dim),
            (4, Some(3)),
            "{model_type}"
        );
    }
    let even = json!({"hidden_size": 32});
    let rotary = rotary("gpt_neox", even).unwrap();
    assert_eq!((rotary.dim, rotary.frequency_dim), (4, None));
}

#[test]
fn rotations_that_fail_in_transformers_are_refused() {
    for model_type in ["phi", "stablelm"] {
        let words = [
            "3 dimensions of each head are rotated",
            "even number up to head_dim 6",
        ];
        assert_says(message(rotary(model_type, json!({}))), &words);
    }
    // All of a head of five.
    let whole = json!({"rope_theta": 100.0, "partial_rotary_factor": 1.0});
    let wide = json!({"hidden_size": 20, "rope_parameters": whole});
    let words = ["6 dimensions of each head are rotated", "head_dim 5"];
    assert_says(message(rotary("gpt_neox", wide)), &words);
    let yarn = json!({"rope_type": "yarn", "factor": 2.0, "partial_rotary_factor": 0.5});
    let yarn = rotary("gpt_neox", json!({"rope_parameters": yarn}));
    assert_says(message(yarn), &["YaRN", "odd number of dimensions"]);
}

#[test]
fn frequencies_of_another_number_of_dimensions_are_refused() {
    for (dim, of) in [(4, 2), (4, 5), (4, 0)] {
        let mut rotary = RotaryConfig::new(dim, 100.0);
        rotary.frequency_dim = Some(of);
        let attention = candle_blocks::AttentionConfig::new(16, 2).unwrap();
        let attention = attention.with_position(Position::Rotary(rotary));
        assert_says(
            message(attention.validate()),
            &["frequencies", "expected 3 or 4"],
        );
    }
}
