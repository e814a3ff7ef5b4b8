//! BERT: post-norm, exact GELU. RoBERTa and ELECTRA have its blocks.
//!
//! transformers' `BertLayer`: <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/bert/modeling_bert.py>

use super::encoder::*;
use super::prelude::*;

pub(super) fn family() -> Family {
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
        .head(Task::MaskedLm, word_by_activation)
        .head(Task::CausalLm, word_by_activation)
        .head(Task::SequenceClassification, |json, _| {
            pooled(json, classifier_dropout(json)?)
        })
        .head(Task::NextSentence, |_, _| {
            let output = OutputConfig::new(2).with_bias(true);
            Ok(ReadoutConfig::new(Reads::Pooled).with_output(output))
        })
        .head(Task::MultipleChoice, |json, _| {
            Ok(choice(classifier_dropout(json)?))
        })
}

/// The table of BERT and of the encoders with its blocks, whose names start with `prefix` beside a head.
pub(super) fn encoder(name: &str, prefix: &str) -> Family {
    Family::new(name, &[name], config)
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
        .end_rules(embedding_rules())
        .end_rules([
            Rule::linear("pooler.transform", &["pooler.dense"]),
            Rule::linear("token_classification.output", &["classifier"]),
            Rule::linear("multiple_choice.output", &["classifier"]),
            Rule::linear("question_answering.output", &["qa_outputs"]),
        ])
        .head(Task::TokenClassification, |json, _| {
            token(json, classifier_dropout(json)?)
        })
        .head(Task::QuestionAnswering, question_answering)
        .default_of("pad_token_id", 0)
        .new_names(new_bias)
        .ignored(&["*position_ids", "*token_type_ids"])
        .outside(&["*embeddings.*", "*pooler.*", "cls.*", "lm_head.*"])
        .outside(&["classifier.*", "qa_outputs.*"])
}

pub(super) fn embeddings(
    json: &ConfigJson,
    stack: &StackConfig,
    positions: PositionTableConfig,
) -> Result<EmbeddingsConfig> {
    let d_model = stack.blocks[0].d_model();
    let width = json.size_or(&["embedding_size"], d_model)?;
    let positions = PositionTableConfig {
        n_rows: json.size(&["max_position_embeddings"])?,
        ..positions
    };
    let tokens = padded_words(json, stack)?
        .with_width(width)
        .with_position_table(positions)
        .with_types(json.size_or(&["type_vocab_size"], 2)?)
        .with_norm(NormConfig::layer_norm(width, stack.blocks[0].norm.eps))
        .with_dropout(json.number(&["hidden_dropout_prob"], 0.1)?);
    let projection = EmbeddingProjection {
        of: Projected::Sum,
        bias: true,
    };
    Ok(match width == d_model {
        true => tokens.into(),
        false => tokens.with_projection(projection).into(),
    })
}

fn word_by_activation(json: &ConfigJson, stack: &StackConfig) -> Result<ReadoutConfig> {
    let activation = json.activation(&["hidden_act"], Activation::Gelu)?;
    word(json, stack, stack.blocks[0].d_model(), activation)
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
