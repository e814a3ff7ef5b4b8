//! BERT's blocks with cross-attention: the decoder of a larger model.
//!
//! transformers' `BertCrossAttention`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bert/modeling_bert.py>

use super::prelude::*;

pub(super) fn cross_rules() -> [Rule; 5] {
    let of = |role: &str, name: &str| {
        let role = format!("cross_attention.{role}");
        Rule::linear(&role, &[&format!("crossattention.{name}")])
    };
    let norm = Rule::norm("cross_attention_norm", &["crossattention.output.LayerNorm"]);
    [
        of("query", "self.query"),
        of("key", "self.key"),
        of("value", "self.value"),
        of("output", "output.dense"),
        norm,
    ]
}

/// Reads the configuration of a class that may attend to an encoder's output; `read` reads the rest.
pub(super) fn crossed(
    json: &ConfigJson,
    read: fn(&ConfigJson) -> Result<StackConfig>,
) -> Result<StackConfig> {
    if !json.flag(&["add_cross_attention"], false)? {
        return read(json);
    }
    if !json.flag(&["is_decoder"], false)? {
        return Err(json.error(&["add_cross_attention"], "needs is_decoder"));
    }
    json.only("position_embedding_type", &[json!("absolute")])?;
    Ok(read(&json.without("add_cross_attention"))?.into_decoder())
}
