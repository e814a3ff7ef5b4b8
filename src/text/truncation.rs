//! Truncates texts and pairs to a number of tokens.

use std::fmt;
use std::str::FromStr;

use tokenizers::{
    EncodeInput, Encoding, InputSequence, PostProcessor, TruncationDirection, TruncationParams,
    truncate_encodings,
};

use crate::error::{Error, Result};

/// The text that is truncated in a pair with too many tokens: transformers' `TruncationStrategy`.
///
/// A text without a second one is the first.
///
/// Pass it to [`TextOptions::truncation`](crate::text::TextOptions::truncation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TruncationStrategy {
    /// The longer text, and then both.
    #[default]
    LongestFirst,
    /// The first text. A pair whose second text leaves no token for it is an error.
    OnlyFirst,
    /// The second text. A pair whose first text leaves no token for it, and a single text that is too long, are errors.
    OnlySecond,
}

impl fmt::Display for TruncationStrategy {
    /// Writes transformers' name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.of_library().as_ref())
    }
}

impl FromStr for TruncationStrategy {
    type Err = Error;

    /// Reads transformers' name.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] if it is not one.
    fn from_str(name: &str) -> Result<Self> {
        let all = [Self::LongestFirst, Self::OnlyFirst, Self::OnlySecond];
        let found = all.into_iter().find(|one| one.to_string() == name);
        found.ok_or_else(|| {
            let names = all.map(|one| one.to_string()).join(", ");
            Error::InvalidConfig(format!(
                "the truncation {name:?} is unknown; expected one of {names}"
            ))
        })
    }
}

impl TruncationStrategy {
    fn of_library(self) -> tokenizers::TruncationStrategy {
        match self {
            Self::LongestFirst => tokenizers::TruncationStrategy::LongestFirst,
            Self::OnlyFirst => tokenizers::TruncationStrategy::OnlyFirst,
            Self::OnlySecond => tokenizers::TruncationStrategy::OnlySecond,
        }
    }

    /// Returns whether the tokenizers library truncates a text in the same way. The library reads at most as many tokens of
    /// each text in a pair as both together may have, so it cannot tell which of two longer texts is the longest.
    pub(super) fn is_the_library_s(self, input: &EncodeInput) -> bool {
        matches!(input, EncodeInput::Single(_)) && self != Self::OnlySecond
    }
}

/// The number of tokens, including special ones, to which texts are truncated.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenLimit {
    pub max_length: usize,
    pub direction: TruncationDirection,
    pub strategy: TruncationStrategy,
}

impl TokenLimit {
    /// Encodes a text or a pair like transformers, with a tokenizer that does not truncate.
    ///
    /// # Errors
    /// If the tokenizer fails, or the strategy cannot truncate the text.
    pub fn encode(
        &self,
        tokenizer: &tokenizers::Tokenizer,
        input: EncodeInput,
    ) -> std::result::Result<Encoding, String> {
        let fail = |error: tokenizers::Error| error.to_string();
        let (first, second) = match input {
            EncodeInput::Single(text) => (text, None),
            EncodeInput::Dual(first, second) => (first, Some(second)),
        };
        let encode = |text: InputSequence| tokenizer.encode_fast(text, false).map_err(fail);
        let first = encode(first)?;
        let second = second.map(encode).transpose()?;
        let processor = tokenizer.get_post_processor();
        let n_special = processor.map_or(0, |processor| processor.added_tokens(second.is_some()));
        let params = TruncationParams {
            max_length: self.max_length.saturating_sub(n_special),
            direction: self.direction,
            strategy: self.strategy.of_library(),
            stride: 0,
        };
        let lengths = (first.len(), second.as_ref().map(Encoding::len));
        let (first, second) =
            truncate_encodings(first, second, &params).map_err(|_| self.refused(lengths))?;
        tokenizer.post_process(first, second, true).map_err(fail)
    }

    /// Returns why a text or pair with these lengths cannot be truncated.
    fn refused(&self, lengths: (usize, Option<usize>)) -> String {
        let (strategy, most) = (self.strategy, self.max_length);
        let has = match lengths {
            (n, None) => format!("the text has {n} tokens and no second text"),
            (n, Some(m)) => format!("the first text has {n} tokens, the second {m}"),
        };
        let cure = "set a larger max_length, or truncation to longest_first";
        format!("cannot be shortened to {most} tokens by {strategy}: {has}; {cure}")
    }
}
