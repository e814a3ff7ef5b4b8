//! The texts that a model reads, and settings for tokenizing them, from its files.

use std::borrow::Cow;

use serde_json::{Map, Value};
use tokenizers::{EncodeInput, PaddingDirection};

use crate::text::TruncationStrategy;

/// Settings beyond the tokenizer's own files.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextReading {
    pub limit: LengthLimit,
    /// The text in a pair that is truncated.
    pub truncation: TruncationStrategy,
    /// A text that cannot be truncated so is left whole.
    pub keeps_whole: bool,
    /// Texts are converted to lower case first.
    pub lower_case: bool,
    /// The tokenizer adds no special tokens.
    pub without_special_tokens: bool,
    /// The model gets token types, which tell the two texts of a pair apart; `None` leaves that to the tokenizer.
    pub types: Option<bool>,
    /// Set if texts go through the chat template.
    pub chat: Option<ChatReading>,
    /// The side on which the tokenizer pads; `None` for the tokenizer's own.
    pub padding_side: Option<PaddingDirection>,
    /// Set if short texts are lengthened: the queries of a model with a vector for each token.
    pub expansion: Option<QueryExpansion>,
}

/// Tokens that lengthen a short query.
#[derive(Clone, Debug)]
pub(crate) struct QueryExpansion {
    /// How many tokens there are with them.
    pub length: usize,
    /// Longer queries are truncated to this length.
    pub truncates: bool,
    /// The model attends to them.
    pub attends: bool,
    /// The token; `None` for the mask token, or the end-of-sequence token if there is none.
    pub token: Option<String>,
}

/// How many tokens a truncated text has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LengthLimit {
    /// The tokenizer's or the model's limit, whichever is smaller.
    #[default]
    OfFiles,
    /// This number, including special tokens, but at most the model's positions.
    Tokens(usize),
    /// This number by the caller: a smaller number of positions has a note.
    Asked(usize),
    /// The number of positions that the model has.
    Positions,
    /// The tokenizer's limit. A text with more tokens than the model has positions is refused.
    OfTokenizer,
    /// None. A text with more tokens than the model has positions is refused.
    Unlimited,
}

/// How texts become messages in a conversation.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChatReading {
    pub content: MessageContent,
    /// Template variables.
    pub variables: Map<String, Value>,
    pub add_generation_prompt: bool,
    pub cut: CutEnd,
}

/// How a message's content is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum MessageContent {
    /// The form that the template seems to read.
    #[default]
    ByTemplate,
    /// A string.
    Flat,
    /// A list of objects with `type` and `text`.
    Structured,
}

/// The treatment of the template's end if a text is truncated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CutEnd {
    /// It replaces the last remaining tokens.
    #[default]
    Restored,
    /// It is truncated too.
    Lost,
}

/// A text, or a pair of texts.
#[derive(Clone, Copy, Debug)]
pub(in crate::text) enum TextInput<'t> {
    One(&'t str),
    Pair(&'t str, &'t str),
}

impl<'t> TextInput<'t> {
    /// Returns the tokenizer's input, with a prompt before the first text.
    pub fn after_prompt(self, prompt: &str) -> EncodeInput<'t> {
        let first = |text: &'t str| match prompt {
            "" => Cow::Borrowed(text),
            _ => Cow::Owned(format!("{prompt}{text}")),
        };
        match self {
            Self::One(text) => EncodeInput::Single(first(text).into()),
            Self::Pair(a, b) => EncodeInput::Dual(first(a).into(), b.into()),
        }
    }
}
