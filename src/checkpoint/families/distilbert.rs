//! DistilBERT: BERT's blocks with other names and a fixed eps.
//!
//! transformers' `TransformerBlock`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/distilbert/modeling_distilbert.py>

use super::encoder::*;
use super::prelude::*;

pub(super) fn family() -> Family {
    Family::new("distilbert", &["distilbert"], config)
        .prefixes(&["distilbert.", ""])
        .block("transformer.layer.{i}.")
        .block_rules([
            Rule::linear("attention.query", &["attention.q_lin"]),
            Rule::linear("attention.key", &["attention.k_lin"]),
            Rule::linear("attention.value", &["attention.v_lin"]),
            Rule::linear("attention.output", &["attention.out_lin"]),
            Rule::norm("attention_norm", &["sa_layer_norm"]),
            Rule::linear("feed_forward.up", &["ffn.lin1"]),
            Rule::linear("feed_forward.down", &["ffn.lin2"]),
            Rule::norm("feed_forward_norm", &["output_layer_norm"]),
        ])
        .end_rules(embedding_rules())
        .end_rules([
            Rule::linear("masked_lm.transform", &["vocab_transform"]),
            Rule::norm("masked_lm.norm", &["vocab_layer_norm"]),
            Rule::linear("masked_lm.output", &["vocab_projector"]),
            Rule::linear("sequence_classification.transform", &["pre_classifier"]),
            Rule::linear("sequence_classification.output", &["classifier"]),
            Rule::linear("token_classification.output", &["classifier"]),
            Rule::linear("question_answering.output", &["qa_outputs"]),
        ])
        .embeddings(embeddings)
        .head(HeadTask::MaskedLm, |json, stack| {
            let activation = json.activation(&["activation"], Activation::Gelu)?;
            word(json, stack, stack.blocks[0].d_model(), activation)
        })
        .head(HeadTask::SequenceClassification, |json, stack| {
            let output = labels(json)?.with_dropout(json.number(&["seq_classif_dropout"], 0.2)?);
            let transform = TransformConfig::new(stack.blocks[0].d_model(), Activation::Relu);
            let read = ReadoutConfig::new(TokenSelection::First).with_transform(transform);
            Ok(read.with_output(output))
        })
        .head(HeadTask::TokenClassification, |json, _| {
            token(json, json.number(&["dropout"], 0.1)?)
        })
        .head(HeadTask::QuestionAnswering, |json, stack| {
            let dropout = json.number(&["qa_dropout"], 0.1)?;
            Ok(question_answering(json, stack)?.with_dropout(dropout))
        })
        .outside(&["embeddings.*", "vocab_*", "pre_classifier.*"])
        .outside(&["classifier.*", "qa_outputs.*"])
}

fn embeddings(json: &ConfigJson, stack: &StackConfig) -> Result<EmbeddingsConfig> {
    let embeddings = padded_token_embeddings(json, stack)?
        .with_positions(json.size(&["max_position_embeddings"])?)
        .with_norm(stack.blocks[0].norm)
        .with_dropout(json.number(&["dropout"], 0.1)?);
    Ok(embeddings.into())
}

fn config(json: &ConfigJson) -> Result<StackConfig> {
    let d_model = json.size(&["dim", "hidden_size"])?;
    let attention = AttentionConfig::new(d_model, json.size(&["n_heads", "num_attention_heads"])?)?
        .with_dropout(json.number(&["attention_dropout"], 0.1)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["hidden_dim"])?)
        .with_activation(json.activation(&["activation"], Activation::Gelu)?);
    let norm = NormConfig::layer_norm(d_model, 1e-12);
    let mut block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Post);
    block.residual.feed_forward_dropout = json.number(&["dropout"], 0.1)?; // no dropout after the attention
    Ok(StackConfig::uniform(
        block,
        json.n_blocks(&["n_layers", "num_hidden_layers"])?,
        None,
    ))
}
