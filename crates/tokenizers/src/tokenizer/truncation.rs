//! Truncates texts and pairs to a number of tokens.

use std::fmt;
use std::str::FromStr;

use tokenizers::{
    EncodeInput, Encoding, TruncationDirection, TruncationParams, truncate_encodings,
};

use candle_blocks_base::{Error, Result};

/// The text that is truncated in a pair with too many tokens: transformers' `TruncationStrategy`.
///
/// A text without a second one is the first.
///
/// Pass it to `TextOptions::truncation`.
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
    pub(crate) fn is_the_library_s(self, input: &EncodeInput) -> bool {
        matches!(input, EncodeInput::Single(_)) && self != Self::OnlySecond
    }
}

/// The number of tokens, including special ones, to which texts are truncated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TokenLimit {
    pub max_length: usize,
    pub direction: TruncationDirection,
    pub strategy: TruncationStrategy,
    /// A pair whose first text is too short to truncate is left whole, not refused. A class in Python leaves its second text
    /// alone.
    pub keeps_whole: bool,
}

/// The rule by which both texts of a pair are shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TruncationRule {
    /// The rule of the tokenizers library.
    Library,
    /// The rule of transformers' tokenizers in Python, where the other text has the odd token.
    Python,
}

/// Returns the lengths of a pair's texts after transformers' `truncate_sequences`.
fn python_lengths((n, m): (usize, usize), max_length: usize) -> (usize, usize) {
    let removed = (n + m).saturating_sub(max_length);
    let from_longer = n.abs_diff(m).min(removed);
    let both = removed - from_longer;
    let (from_first, from_second) = match n > m {
        true => (from_longer + both / 2, both - both / 2),
        false => (both / 2, from_longer + both - both / 2),
    };
    (n.saturating_sub(from_first), m.saturating_sub(from_second))
}

impl TokenLimit {
    /// Truncates a text or a pair like transformers. `n_special` tokens are added to it later.
    ///
    /// # Errors
    /// If the strategy cannot truncate the text, or the special tokens alone are more than the limit.
    pub fn truncated(
        &self,
        (mut first, mut second): (Encoding, Option<Encoding>),
        n_special: usize,
        rule: TruncationRule,
    ) -> std::result::Result<(Encoding, Option<Encoding>), String> {
        let Some(max_length) = self.max_length.checked_sub(n_special) else {
            return Err(format!(
                "a pair has {n_special} special tokens, but may have only {}; set a larger max_length",
                self.max_length
            ));
        };
        let lengths = (first.len(), second.as_ref().map(Encoding::len));
        if let (TruncationRule::Python, TruncationStrategy::LongestFirst, (n, Some(m))) =
            (rule, self.strategy, lengths)
        {
            let (n, m) = python_lengths((n, m), max_length);
            first.truncate(n, 0, self.direction);
            if let Some(second) = &mut second {
                second.truncate(m, 0, self.direction);
            }
            return Ok((first, second));
        }
        if let (TruncationRule::Python, TruncationStrategy::OnlyFirst, true) =
            (rule, self.strategy, self.keeps_whole)
        {
            let (n, m) = lengths;
            let left = max_length.saturating_sub(m.unwrap_or(0));
            first.truncate(left.min(n), 0, self.direction);
            return Ok((first, second));
        }
        let params = TruncationParams {
            max_length,
            direction: self.direction,
            strategy: self.strategy.of_library(),
            stride: 0,
        };
        truncate_encodings(first, second, &params).map_err(|_| self.refused(lengths))
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
