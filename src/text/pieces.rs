//! The text of tokens as they come, in whole characters.

use super::Tokenizer;
use crate::error::Result;

/// How many tokens of a prompt decide how the first new one is written: with a space in front or without.
const CONTEXT: usize = 6;

/// What a decoder writes for bytes that are no character, or not yet.
const NO_CHARACTER: char = '\u{fffd}';

/// Turns tokens into text piece by piece. A character whose bytes are several tokens comes with the last of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    ids: Vec<u32>,
    /// The tokens from here on are decoded: those in front of `written` say how the rest is.
    first: usize,
    /// The tokens from here on have no text yet.
    written: usize,
}

impl Pieces {
    /// The text behind a prompt.
    pub fn behind(prompt: &[u32]) -> Self {
        let ids = prompt[prompt.len().saturating_sub(CONTEXT)..].to_vec();
        Self {
            first: 0,
            written: ids.len(),
            ids,
        }
    }

    /// The text that one more token completes; empty if it completes none.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String> {
        self.ids.push(id);
        let text = self.rest(tokenizer)?;
        if text.is_empty() || text.ends_with(NO_CHARACTER) {
            return Ok(String::new());
        }
        (self.first, self.written) = (self.written, self.ids.len());
        Ok(text)
    }

    /// The text of tokens that have none yet, though it ends within a character.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String> {
        let text = self.rest(tokenizer)?;
        self.written = self.ids.len();
        Ok(text)
    }

    fn rest(&self, tokenizer: &Tokenizer) -> Result<String> {
        let written = tokenizer.decode(&self.ids[self.first..self.written])?;
        let all = tokenizer.decode(&self.ids[self.first..])?;
        Ok(all.get(written.len()..).unwrap_or_default().to_string())
    }
}
