//! Limits on sequence lengths, by transformers' rules.

use super::GenerationOptions;
use crate::error::{Error, Result};

/// Length limits for a batch in tokens, including prompts and the padding before them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Lengths {
    /// The longest prompt's length.
    pub prompt: usize,
    /// The maximum length.
    pub max: usize,
    /// The minimum length before a sequence may end.
    pub min: usize,
}

impl Lengths {
    /// # Errors
    /// If prompts are as long as `max_length` or longer.
    pub fn new(options: &GenerationOptions, prompt: usize) -> Result<Self> {
        let max = match (options.max_new_tokens, options.max_length) {
            (Some(new), _) => prompt.saturating_add(new),
            (None, Some(all)) => all,
            (None, None) => {
                let positions = options.positions.unwrap_or(usize::MAX);
                (prompt + GenerationOptions::NEW_TOKENS).min(positions.max(prompt))
            }
        };
        if options.max_new_tokens.is_none() && options.max_length.is_some_and(|all| prompt >= all) {
            return Err(Error::input(
                "prompt",
                format!(
                    "has {prompt} tokens, but max_length, which counts them too, is {max}; set max_new_tokens instead, or shorten it"
                ),
            ));
        }
        let min = match options.min_new_tokens {
            Some(new) => prompt.saturating_add(new),
            None => options.min_length,
        };
        Ok(Self { prompt, max, min })
    }

    /// Returns the maximum number of new tokens.
    pub fn new_tokens(&self) -> usize {
        self.max - self.prompt
    }
}
