//! ESM: a pre-norm language model for proteins; ESM-2 has rotary embeddings.
//!
//! transformers' `EsmLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/esm/modeling_esm.py>

use super::bert::{block, encoder, norm_first, stack};
use super::encoder::*;
use super::prelude::*;

pub(super) fn family() -> Family {
    encoder("esm", "esm.")
        .read_by(config)
        .replace_block_rules([
            Rule::norm("attention_norm", &["attention.LayerNorm"]),
            Rule::norm("feed_forward_norm", &["LayerNorm"]),
        ])
        .stack_rules([Rule::norm("final_norm", &["encoder.emb_layer_norm_after"])])
        .end_rules(word_rules([
            "lm_head.dense",
            "lm_head.layer_norm",
            "lm_head",
        ]))
        .end_rules(first_token_rules())
        .end_rules([Rule::norm("embeddings.norm", &["embeddings.layer_norm"])])
        .class_sizes(&["max_position_embeddings"])
        .embeddings(embeddings)
        .pooler(|_, stack| Ok(first_through_tanh(stack)))
        .head(HeadTask::MaskedLm, word_by_gelu)
        .head(HeadTask::SequenceClassification, |json, stack| {
            first_token(json, stack, Activation::Tanh, hidden_dropout(json)?)
        })
        .head(HeadTask::TokenClassification, token_of_encoder)
        .new_names(|_| Ok(&["lm_head.bias", "*embeddings.layer_norm.*"]))
        .outside(&["contact_head.*"])
        .ignored(&["embeddings.position_embeddings.weight"]) // of ESM-2, which has rotary embeddings
}

fn is_rotary(json: &ConfigJson) -> Result<bool> {
    let kinds = ["absolute", "rotary"];
    json.only("position_embedding_type", &kinds.map(Value::from))?;
    Ok(json.text(&["position_embedding_type"])?.as_deref() == Some("rotary"))
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("is_folding_model", &[json!(false)])?;
    let mut block = block(json)?;
    block.feed_forward.activation = Activation::Gelu; // independent of the file
    if is_rotary(json)? {
        let theta = json.number(&["rope_theta"], 10000.0)?;
        let rotary = RotaryConfig::new(block.attention()?.head_dim, theta);
        block.attention_mut()?.position = Position::Rotary(rotary);
    }
    Ok(norm_first(stack(json, block)?))
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let mut embeddings = padded_token_embeddings(json, stack)?.with_blank_padding(true);
    if json.flag(&["token_dropout"], false)? {
        embeddings = embeddings.with_token_dropout(TokenDropout {
            token: json.size(&["mask_token_id"])? as u32,
            usual: 0.15 * 0.8, // the same for every ESM, as in transformers
        });
    }
    if json.flag(&["emb_layer_norm_before"], false)? {
        embeddings = embeddings.with_norm(stack.blocks[0].norm);
    }
    if !is_rotary(json)? {
        embeddings = embeddings.with_position_table(PositionTableConfig {
            n_rows: json.size(&["max_position_embeddings"])?,
            ..positions_except(json.size(&["pad_token_id"])?)
        });
    }
    Ok(embeddings.into())
}
