//! AltCLIP's and Chinese CLIP's texts: RoBERTa and BERT beside CLIP's vision tower.
//!
//! transformers' `AltCLIPModel` and `ChineseCLIPModel`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/altclip/modeling_altclip.py>

use super::bert_like::encoder;
use super::clip::{end_of_text, towers};
use super::prelude::*;
use super::{bert, roberta};

pub(super) fn families() -> Vec<Family> {
    let bert = bert::table().prefixes(&["text_model.", ""]);
    let chinese = bert.pooler(|_, _| Ok(ReadoutConfig::new(TokenSelection::First)));
    let roberta = roberta::family("altclip", "text_model.roberta.")
        .end_rules([
            Rule::norm("pooler.norm", &["text_model.pre_LN"]),
            Rule::linear("pooler.output", &["text_model.transformation"]),
        ])
        .pooler(|json, stack| {
            let output = OutputConfig::new(json.width_or(&["project_dim"], 768)?).with_bias(true);
            let norm = TransformConfig::norm(stack.blocks[0].norm);
            let first = ReadoutConfig::new(TokenSelection::First);
            Ok(first.with_transform(norm).with_output(output))
        })
        .outside(&["text_model.pre_LN.*", "text_model.transformation.*"]);
    vec![
        beside_images("chinese_clip", chinese),
        beside_images("altclip", roberta),
    ]
}

/// Returns the table for a text encoder, described under `text_config`, beside CLIP's vision tower.
fn beside_images(name: &str, table: Family) -> Family {
    let [clip, _] = towers(name, end_of_text);
    let rules = clip.end_rules.into_iter();
    let rules =
        rules.filter(|rule| ["projection.output", "similarity"].contains(&rule.role.as_str()));
    Family {
        part: clip.part,
        joined: clip.joined,
        heads: clip.heads,
        outside: [table.outside.clone(), clip.outside].concat(),
        ..encoder(table.named(name))
            .end_rules(rules)
            .section("text_config")
            .handed_on("projection_dim")
    }
}
