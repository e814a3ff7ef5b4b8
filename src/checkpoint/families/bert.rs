//! BERT: post-norm, exact GELU. RoBERTa and ELECTRA use its blocks.
//!
//! transformers' `BertLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bert/modeling_bert.py>

use super::bert_writer::{cross_rules, crossed};
use super::encoder::*;
use super::prelude::*;

pub(super) fn table() -> Family {
    encoder("bert", "bert.")
        .end_rules(word_rules([
            "cls.predictions.transform.dense",
            "cls.predictions.transform.LayerNorm",
            "cls.predictions",
        ]))
        .end_rules([
            Rule::linear("sequence_classification.output", &["classifier"]),
            Rule::linear("next_sentence.output", &["cls.seq_relationship"]),
        ])
        .embeddings(|json, stack| embeddings(json, stack, ALL_POSITIONS))
        .pooler(|_, stack| Ok(first_through_tanh(stack)))
        .head(HeadTask::MaskedLm, word_by_activation)
        .head(HeadTask::CausalLm, word_by_activation)
        .head(HeadTask::SequenceClassification, pooled_of_encoder)
        .head(HeadTask::NextSentence, |_, _| {
            let output = OutputConfig::new(2).with_bias(true);
            Ok(ReadoutConfig::new(TokenSelection::Pooled).with_output(output))
        })
        .head(HeadTask::MultipleChoice, |json, _| {
            Ok(choice(classifier_dropout(json)?))
        })
}

/// The table for BERT and encoders with its blocks; `prefix` is the base model's prefix beside a head.
pub(super) fn encoder(name: &str, prefix: &str) -> Family {
    Family::new(name, &[name], |json| crossed(json, config))
        .prefixes(&[prefix, ""])
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
        .block_rules(cross_rules())
        .end_rules(embedding_rules())
        .end_rules([
            Rule::linear("pooler.transform", &["pooler.dense"]),
            Rule::linear("token_classification.output", &["classifier"]),
            Rule::linear("multiple_choice.output", &["classifier"]),
            Rule::linear("question_answering.output", &["qa_outputs"]),
        ])
        .head(HeadTask::TokenClassification, |json, _| {
            token(json, classifier_dropout(json)?)
        })
        .head(HeadTask::QuestionAnswering, question_answering)
        .new_names(new_bias)
        .ignored(&["*token_type_ids"])
        .outside(&["*embeddings.*", "*pooler.*", "cls.*", "lm_head.*"])
        .outside(&["classifier.*", "qa_outputs.*"])
}

pub(super) fn embeddings(
    json: &ConfigJson,
    stack: &StackConfig,
    positions: PositionTableConfig,
) -> Result<EmbeddingsConfig> {
    let width = stack.blocks[0].d_model();
    let positions = PositionTableConfig {
        n_rows: json.size(&["max_position_embeddings"])?,
        ..positions
    };
    let embeddings = typed_token_embeddings(json, stack, width)?;
    Ok(embeddings.with_position_table(positions).into())
}

/// Returns normalized token embeddings with this width and token types, projected if the blocks are wider.
pub(super) fn typed_token_embeddings(
    json: &ConfigJson,
    stack: &StackConfig,
    width: usize,
) -> Result<TokenEmbeddingsConfig> {
    let embeddings = padded_token_embeddings(json, stack)?
        .with_width(width)
        .with_types(json.size_or(&["type_vocab_size"], 2)?)
        .with_norm(NormConfig::layer_norm(width, stack.blocks[0].norm.eps))
        .with_dropout(hidden_dropout(json)?);
    Ok(match width == embeddings.d_model {
        true => embeddings,
        false => embeddings.with_projection(EmbeddingProjection {
            of: Projected::Sum,
            bias: true,
        }),
    })
}

fn word_by_activation(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let activation = json.activation(&["hidden_act"], Activation::Gelu)?;
    word(json, stack, stack.blocks[0].d_model(), activation)
}

pub(super) fn config(json: &ConfigJson) -> Result<StackConfig> {
    json.only("position_embedding_type", &[json!("absolute")])?;
    stack(json, block(json)?)
}

/// Returns a stack of identical blocks, an encoder or a decoder, as deep as the file says.
pub(super) fn stack(json: &ConfigJson, mut block: BlockConfig) -> Result<StackConfig> {
    json.only("add_cross_attention", &[json!(false)])?;
    if json.flag(&["is_decoder"], false)? {
        block.attention_mut()?.visibility = Visibility::Causal;
    }
    let n_blocks = json.n_blocks(&["num_hidden_layers"])?;
    Ok(StackConfig::uniform(block, n_blocks, None))
}

/// Returns the stack as pre-norm, with a norm after the last block.
pub(super) fn norm_first(stack: StackConfig) -> StackConfig {
    let final_norm = Some(stack.blocks[0].norm);
    let stack = stack.with_each(|_, block| {
        block.attention_placement = NormPlacement::Pre;
        block.feed_forward_placement = NormPlacement::Pre;
    });
    StackConfig {
        final_norm,
        ..stack
    }
}

/// Returns the block that most encoders since BERT describe with the same keys.
pub(super) fn block(json: &ConfigJson) -> Result<BlockConfig> {
    let d_model = json.size(&["hidden_size"])?;
    let attention = AttentionConfig::new(d_model, json.size(&["num_attention_heads"])?)?
        .with_dropout(json.number(&["attention_probs_dropout_prob"], 0.1)?);
    let feed_forward = FeedForwardConfig::new(d_model)
        .with_d_ff(json.size(&["intermediate_size"])?)
        .with_activation(json.activation(&["hidden_act"], Activation::Gelu)?);
    let norm = NormConfig::layer_norm(d_model, json.number(&["layer_norm_eps"], 1e-12)?);
    let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Post);
    Ok(block.with_residual_dropout(hidden_dropout(json)?))
}
