//! RoBERTa as pre-norm, and XLM-R's XL sizes.
//!
//! transformers' `RobertaPreLayerNormLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/roberta_prelayernorm/modeling_roberta_prelayernorm.py>, and `XLMRobertaXLLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/xlm_roberta_xl/modeling_xlm_roberta_xl.py>

use super::bert;
use super::encoder::hidden_dropout;
use super::prelude::*;
use super::roberta;

pub(super) fn families() -> Vec<Family> {
    vec![
        roberta::family("roberta-prelayernorm", "roberta_prelayernorm.")
            .read_by(|json| Ok(bert::norm_first(bert::config(json)?)))
            .replace_block_rules([
                Rule::norm("attention_norm", &["attention.LayerNorm"]),
                Rule::norm("feed_forward_norm", &["intermediate.LayerNorm"]),
            ])
            .stack_rules([Rule::norm("final_norm", &["LayerNorm"])]),
        roberta::family("xlm-roberta-xl", "roberta.")
            .read_by(xl)
            .class_sizes(&["type_vocab_size"])
            .replace_block_rules([
                Rule::norm("attention_norm", &["attention.self_attn_layer_norm"]),
                Rule::norm("feed_forward_norm", &["LayerNorm"]),
            ])
            .stack_rules([Rule::norm("final_norm", &["encoder.LayerNorm"])])
            .embeddings(|json, stack| {
                let padding = json.size_or(&["pad_token_id"], 1)?;
                let positions = PositionTableConfig {
                    n_rows: json.size(&["max_position_embeddings"])?,
                    ..positions_except(padding)
                };
                let embeddings = padded_token_embeddings(json, stack)?
                    .with_types(json.size(&["type_vocab_size"])?)
                    .with_position_table(positions);
                let dropout = hidden_dropout(json)?;
                Ok(embeddings.with_dropout(dropout).into())
            }),
    ]
}

fn xl(json: &ConfigJson) -> Result<StackConfig> {
    let stack = bert::norm_first(bert::config(json)?);
    Ok(stack.with_each(|_, block| block.residual.feed_forward_dropout = 0.0))
}
