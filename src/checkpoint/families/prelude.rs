//! Helpers for writing tables.

pub(super) use super::llama::gated;
pub(super) use super::token_labels::{token, token_of_decoder};
pub(super) use super::width_of_heads::attention_of;
pub(super) use crate::checkpoint::keys::{initializer_range, masking::masked};
pub(super) use crate::checkpoint::{config_json::ConfigJson, scheme::*};
pub(super) use crate::{config::*, error::Result};
pub(super) use serde_json::{Value, json};

/// Returns the block with norms before and after each sublayer.
pub(super) fn sandwich_block(mut block: BlockConfig) -> BlockConfig {
    block.attention_placement = NormPlacement::Sandwich;
    block.feed_forward_placement = NormPlacement::Sandwich;
    block
}

/// Rules for an attention's projections, which have these names under `stem`.
pub(super) fn projections(role: &str, stem: &str, names: [&str; 4]) -> Vec<Rule> {
    let parts = ["query", "key", "value", "output"].into_iter().zip(names);
    let rule = |(part, name)| Rule::linear(&format!("{role}.{part}"), &[&format!("{stem}.{name}")]);
    parts.map(rule).collect()
}

impl Family {
    /// Returns the table without embeddings and heads, for a family that has different ones.
    pub(super) fn without_embeddings_and_heads(self) -> Self {
        Self {
            end_rules: vec![],
            ..self.without_heads()
        }
    }

    /// Returns the table without heads.
    pub(super) fn without_heads(self) -> Self {
        Self {
            heads: vec![],
            ..self
        }
    }

    /// Adds a decoder's embeddings and heads: token embeddings called `embeddings`, and transformers' heads, whose token
    /// classification head is called `classifier`.
    pub(super) fn decoder_embeddings_and_heads(self, embeddings: &str, classifier: &str) -> Self {
        self.end_rules([
            Rule::linear("embeddings.word", &[embeddings]),
            Rule::linear("causal_lm.output", &["lm_head"]),
            Rule::linear("sequence_classification.output", &["score"]),
            Rule::linear("token_classification.output", &[classifier]),
            Rule::linear("question_answering.output", &["qa_outputs"]),
        ])
        .embeddings(|json, stack| Ok(self::token_embeddings(json, stack)?.into()))
        .head(HeadTask::CausalLm, causal_lm)
        .head(HeadTask::SequenceClassification, last_token)
        .head(HeadTask::TokenClassification, token_of_decoder(classifier))
        .head(HeadTask::QuestionAnswering, question_answering)
        .outside(HEADS)
    }
}

/// Returns plain token embeddings.
pub(super) fn token_embeddings(
    json: &ConfigJson,
    stack: &StackConfig,
) -> Result<TokenEmbeddingsConfig> {
    let d_model = stack.blocks[0].d_model();
    let n_tokens = json.size(&["vocab_size"])?;
    Ok(TokenEmbeddingsConfig::new(n_tokens, d_model))
}

/// Returns token embeddings whose padding row is not trained.
pub(super) fn padded_token_embeddings(
    json: &ConfigJson,
    stack: &StackConfig,
) -> Result<TokenEmbeddingsConfig> {
    let embeddings = token_embeddings(json, stack)?;
    let padding = json.optional_number(&["pad_token_id"])?;
    // PyTorch counts negative ids from the end.
    let from_end = |padding: f64| match padding < 0.0 {
        true => padding + embeddings.n_tokens as f64,
        false => padding,
    };
    Ok(TokenEmbeddingsConfig {
        padding: padding.map(|padding| from_end(padding) as u32),
        ..embeddings
    })
}

/// Positions counted over all tokens, starting at the table's first row.
pub(super) const ALL_POSITIONS: PositionTableConfig = PositionTableConfig {
    n_rows: 0,
    first_row: 0,
    counted: CountedTokens::All,
    vectors: PositionVectors::Learned,
};

/// Positions counted over all tokens except `padding`, starting at the row after `padding`.
pub(super) fn positions_except(padding: usize) -> PositionTableConfig {
    PositionTableConfig {
        first_row: padding + 1,
        counted: CountedTokens::Except(padding as u32),
        ..ALL_POSITIONS
    }
}

/// Returns a language model's output layer, tied to the token embeddings unless the file says otherwise.
pub(super) fn language_model(json: &ConfigJson) -> Result<OutputConfig> {
    let is_tied = json.flag(&["tie_word_embeddings"], true)?;
    let weight = match is_tied {
        true => OutputWeight::Words,
        false => OutputWeight::Own,
    };
    Ok(OutputConfig::new(json.size(&["vocab_size"])?).with_weight(weight))
}

/// Returns a causal language model's head.
pub(super) fn causal_lm(json: &ConfigJson, _: &StackConfig) -> Result<ReadoutConfig> {
    next_token(language_model(json)?)
}

/// Returns a causal language model's head with this output layer.
pub(super) fn next_token(output: OutputConfig) -> Result<ReadoutConfig> {
    Ok(ReadoutConfig::new(TokenSelection::Each).with_output(output))
}

/// Returns an output layer for labels, with a bias.
pub(super) fn labels(json: &ConfigJson) -> Result<OutputConfig> {
    let named = json.section(&["id2label"])?;
    let n_named = named.map(|labels| labels.keys().count());
    let n_labels = json.width_or(&["num_labels"], n_named.unwrap_or(2))?;
    Ok(OutputConfig::new(n_labels).with_bias(true))
}

/// Returns a decoder's classification head on the last token.
pub(super) fn last_token(json: &ConfigJson, _: &StackConfig) -> Result<ReadoutConfig> {
    let padding = json.optional_size(&["pad_token_id"])?;
    let reads = TokenSelection::LastExcept(padding.map(|padding| padding as u32));
    Ok(ReadoutConfig::new(reads).with_output(labels(json)?.with_bias(false)))
}

/// Returns the question-answering head: logits for the start and the end of an answer.
pub(super) fn question_answering(_: &ConfigJson, _: &StackConfig) -> Result<ReadoutConfig> {
    let output = OutputConfig::new(2).with_bias(true);
    Ok(ReadoutConfig::new(TokenSelection::Each).with_output(output))
}

/// Patterns for the heads that transformers places after a decoder's blocks.
const HEADS: &[&str] = &["lm_head.*", "score.*", "classifier.*", "qa_outputs.*"];
