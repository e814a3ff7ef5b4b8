//! DeBERTa's attention keys in published files, and refused values.

use std::fs;

use candle_blocks::{
    Architecture, Checkpoint, Position, Result, Weights,
    candle_core::{DType, Device},
    config::{DisentangledConfig, HeadTask, OutputWeight, PositionProjections},
};
use serde_json::{Value, json};

use crate::opened::opened_with;
use crate::weights::{is_present, weights};

/// Opens `microsoft/deberta-v3-base`'s configuration with these changes.
fn version_3(changes: Value) -> Result<Architecture> {
    let config = json!({
        "model_type": "deberta-v2", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
        "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072, "max_position_embeddings": 512,
        "relative_attention": true, "position_buckets": 256, "norm_rel_ebd": "layer_norm", "share_att_key": true,
        "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7, "max_relative_positions": -1, "position_biased_input": false,
        "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 0, "vocab_size": 128100,
    });
    opened_with(config, changes)
}

#[test]
fn version_3_is_read_as_published() {
    let architecture = version_3(json!({})).unwrap();
    let (stack, mut expected) = (&architecture.config, DisentangledConfig::new(256));
    let attention = stack.blocks[0].attention().unwrap();
    expected.max_distance = Some(512);
    expected.dropout = 0.1;
    assert_eq!(expected.projections, PositionProjections::Shared);
    assert_eq!(attention.position, Position::Disentangled(expected));
    assert!((attention.scale - 1.0 / (3.0 * 64f64).sqrt()).abs() < 1e-15);
    let table = stack.relative_embeddings.unwrap();
    assert_eq!((table.n_rows, table.norm.unwrap().eps), (512, 1e-7));
}

#[test]
fn other_files_of_the_family_are_read_as_transformers_reads_them() {
    let attention = |changes| {
        let stack = version_3(changes).unwrap().config;
        (
            stack.blocks[0].attention().unwrap().clone(),
            stack.relative_embeddings,
        )
    };
    let position = |changes| match attention(changes).0.position {
        Position::Disentangled(of) => of,
        other => panic!("{other:?}"),
    };
    let one = position(json!({"pos_att_type": ["c2p"], "share_att_key": false}));
    assert_eq!(
        [one.content_to_position, one.position_to_content],
        [true, false]
    );
    assert_ne!(one.projections, PositionProjections::Shared);
    let plain = position(json!({"position_buckets": -1, "max_relative_positions": 100}));
    assert_eq!((plain.span, plain.max_distance), (100, None));
    let (_, table) = attention(json!({"norm_rel_ebd": "none"}));
    assert_eq!(table.unwrap().norm, None);
    // The terms count for the scale even where there is no table.
    let (off, table) = attention(json!({"relative_attention": false}));
    assert_eq!((off.position, table), (Position::None, None));
    assert!((off.scale - 1.0 / (3.0 * 64f64).sqrt()).abs() < 1e-15);
    let (none, table) = attention(json!({"pos_att_type": null}));
    assert_eq!((none.position, table), (Position::None, None));
    assert_eq!(none.scale, 0.125);
}

#[test]
fn unsupported_block_features_are_refused_by_key() {
    for (changes, words) in [
        (json!({"conv_kernel_size": 3}), ["conv_kernel_size", "3"]),
        (
            json!({"attention_head_size": 32}),
            ["attention_head_size", "64"],
        ),
        (json!({"pos_att_type": "p2p|c2p"}), ["pos_att_type", "p2p"]),
        (
            json!({"model_type": "deberta", "talking_head": true}),
            ["talking_head", "true"],
        ),
    ] {
        let message = version_3(changes).unwrap_err().to_string();
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

/// Files for version 3 name the masked language model's head as in their authors' own program, and have no `legacy`.
#[test]
fn the_masked_lm_head_is_read_under_either_name() {
    let folder = weights("families/deberta-v2-own");
    if !is_present("families/deberta-v2-own") {
        return;
    }
    let text = fs::read_to_string(folder.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(config["legacy"], json!(false));
    config.as_object_mut().unwrap().remove("legacy");
    let changed = tempfile::tempdir().unwrap();
    let path = changed.path().join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    let options = candle_blocks::CheckpointOptions::default().config(path);
    let checkpoint: Checkpoint = options.open(&folder).unwrap();
    let head = checkpoint.model_config().unwrap().head.as_ref().unwrap();
    assert_eq!(head.task, HeadTask::MaskedLm);
    let output = head.readout.output.as_ref().unwrap();
    assert_eq!(output.weight, OutputWeight::Words);
    checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .model()
        .unwrap();
}
