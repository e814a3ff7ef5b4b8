//! How texts become tokens, as far as a model's files say it.

use serde_json::{Map, Value};

use super::TruncationStrategy;

/// What goes beyond the tokenizer's own files.
#[derive(Clone, Debug, Default)]
pub(super) struct Reading {
    pub limit: Limit,
    /// The text of a pair that is shortened.
    pub truncation: TruncationStrategy,
    /// Whether the case of every text is lowered first.
    pub lower_case: bool,
    /// Whether the special tokens of the tokenizer are left out.
    pub without_special_tokens: bool,
    /// Whether the model is told which text of a pair a token belongs to; `None` leaves that to the tokenizer.
    pub types: Option<bool>,
    /// Set where texts go through the chat template.
    pub chat: Option<ChatReading>,
}

/// The number of tokens to which texts are shortened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Limit {
    /// The smaller one of the tokenizer's and the model's.
    #[default]
    OfFiles,
    /// This many, special ones included, as far as the model has positions.
    Tokens(usize),
    /// As many as the model has positions.
    Positions,
}

/// How texts become the messages of a conversation.
#[derive(Clone, Debug, Default)]
pub(super) struct ChatReading {
    pub content: Content,
    /// Variables of the template.
    pub variables: Map<String, Value>,
    pub add_generation_prompt: bool,
    pub cut: CutEnd,
}

/// The form of a message's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Content {
    /// The form that the template seems to read.
    #[default]
    ByTemplate,
    /// The text itself.
    Flat,
    /// A list of objects with `type` and `text`.
    Structured,
}

/// What becomes of the end of the template where a text is shortened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum CutEnd {
    /// It replaces the last tokens that are left.
    #[default]
    Restored,
    /// It is cut off with the rest.
    Lost,
}
