//! Text encoders of models whose other parts are not loaded, and Splinter: BERT's or RoBERTa's blocks and embeddings under other
//! model types.
//!
//! transformers' `AlignTextModel`, `ChineseCLIPTextModel`, `ClapTextModel`, `BridgeTowerTextModel` and `SplinterModel`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/align/modeling_align.py>

use super::prelude::*;
use super::{bert, roberta};

pub(super) fn families() -> Vec<Family> {
    let alone = |table: Family| Family {
        heads: vec![],
        ..table
    };
    // These classes are always encoders.
    let encoder = |table: Family| {
        alone(table).read_by(|json| {
            bert::config(&json.without("is_decoder").without("add_cross_attention"))
        })
    };
    let text = |name: &str| encoder(bert::family().named(name).prefixes(&["text_model.", ""]));
    vec![
        text("align_text_model"),
        text("chinese_clip_text_model"),
        Family {
            pooler: None,
            ..text("splinter").prefixes(&["splinter.", ""])
        },
        encoder(roberta::family("clap_text_model", "text_model.")),
        alone(roberta::family("bridgetower_text_model", "text_model.")),
    ]
}
