//! BERT and the encoders with its blocks (RoBERTa, XLM-R, CamemBERT, ELECTRA): post-norm, exact GELU.
//!
//! transformers' `BertLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bert/modeling_bert.py>

use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new(
        "bert",
        &["bert", "roberta", "xlm-roberta", "camembert", "electra"],
        config,
    )
    .prefixes(&["bert.", "roberta.", "electra.", ""])
    .block("encoder.layer.{i}.")
    .block_rules([
        Rule::linear("attention.query", &["attention.self.query"]),
        Rule::linear("attention.key", &["attention.self.key"]),
        Rule::linear("attention.value", &["attention.self.value"]),
        Rule::linear("attention.output", &["attention.output.dense"]),
        Rule::norm("attention_norm", &["attention.output.LayerNorm"]),
        Rule::linear("feed_forward.up", &["intermediate.dense"]),
        Rule::linear("feed_forward.down", &["output.dense"]),
        Rule::norm("feed_forward_norm", &["output.LayerNorm"]),
    ])
    .ignored(&["*position_ids", "*token_type_ids"])
    .outside(&["*embeddings.*", "*embeddings_project.*", "*pooler.*"])
    .outside(&["cls.*", "lm_head.*"])
    .outside(&["classifier.*", "qa_outputs.*", "*predictions.*"])
    .outside(&["generator_lm_head.*", "*summary.*"])
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("position_embedding_type", &[json!("absolute")])?;
    json.only("add_cross_attention", &[json!(false)])?;
    let mut block = block(json)?;
    if json.flag(&["is_decoder"], false)? {
        block.attention.visibility = Visibility::Causal;
    }
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, None))
}

/// The block that most encoders since BERT describe in the same keys.
pub(super) fn block(json: &ConfigJson) -> Result<BlockConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .with_dropout(json.number(&["attention_probs_dropout_prob"], 0.1)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], Activation::Gelu)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-12)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Post);
    Ok(block.with_residual_dropout(json.number(&["hidden_dropout_prob"], 0.1)?))
}
