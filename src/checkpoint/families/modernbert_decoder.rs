//! ModernBERT's decoder: its blocks with a causal mask, and separate queries, keys and values.
//!
//! transformers' `ModernBertDecoderLayer`:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/modernbert_decoder/modeling_modernbert_decoder.py>

use super::modernbert;
use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("modernbert-decoder", &["modernbert-decoder"], config)
        .prefixes(&["model.", ""])
        .block("layers.{i}.")
        .block_rules(projections(
            "attention",
            "attn",
            ["q_proj", "k_proj", "v_proj", "Wo"],
        ))
        .block_rules([
            Rule::norm("attention_norm", &["attn_norm"]),
            Rule::norm("feed_forward_norm", &["mlp_norm"]),
            Rule::linear("feed_forward.down", &["mlp.Wo"]),
        ])
        .block_rules(Rule::fused_gate(&["mlp.Wi"], GateHalf::First))
        .stack_rules([Rule::norm("final_norm", &["final_norm"])])
        .end_rules([
            Rule::linear("embeddings.word", &["embeddings.tok_embeddings"]),
            Rule::norm("embeddings.norm", &["embeddings.norm"]),
            Rule::linear("causal_lm.transform", &["lm_head.dense"]),
            Rule::norm("causal_lm.norm", &["lm_head.norm"]),
            Rule::linear("causal_lm.output", &["decoder"]),
            Rule::linear("sequence_classification.transform", &["head.dense"]),
            Rule::norm("sequence_classification.norm", &["head.norm"]),
            Rule::linear("sequence_classification.output", &["classifier"]),
        ])
        .embeddings(modernbert::embeddings)
        .head(HeadTask::CausalLm, |json, stack| {
            let bias = json.flag(&["decoder_bias"], true)?;
            let output = language_model(json)?.with_bias(bias);
            modernbert::head(json, stack, TokenSelection::Each, output)
        })
        .head(HeadTask::SequenceClassification, |json, stack| {
            let padding = json.optional_size(&["pad_token_id"])?;
            let reads = TokenSelection::LastExcept(padding.map(|padding| padding as u32));
            let output = labels(json)?
                .with_bias(json.flag(&["classifier_bias"], false)?)
                .with_dropout(json.number(&["classifier_dropout"], 0.0)?);
            modernbert::head(json, stack, reads, output)
        })
        .outside(&["embeddings.*", "lm_head.*", "decoder.*"])
        .outside(&["head.*", "classifier.*"])
        .initialization(modernbert::initialization)
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let stack = modernbert::config(json)?;
    Ok(stack.with_each_attention(|_, attention| attention.visibility = Visibility::Causal))
}
