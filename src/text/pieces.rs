//! The text of tokens as they come, in whole characters.

use super::Tokenizer;
use crate::error::Result;

/// What a decoder writes for bytes that are no character, or not yet.
const NO_CHARACTER: char = '\u{fffd}';

/// Turns tokens into text piece by piece. The pieces add up to the text of all tokens behind that of the prompt.
///
/// A piece comes once later tokens cannot change it: a character with the last of its bytes, and of a tokenizer with byte
/// fallback, bytes in a row with the token behind them, because one that is no character spoils the whole row. If the prompt ends
/// within a character, the piece has the whole character.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    /// The tokens that are decoded: from a place at which text began, since a decoder needs to see what is in front.
    ids: Vec<u32>,
    /// The number of tokens in front of the last place at which all text was shown.
    shown_ids: usize,
    /// The text of the tokens that was shown.
    shown: String,
}

impl Pieces {
    /// The text behind a prompt.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn behind(tokenizer: &Tokenizer, prompt: &[u32]) -> Result<Self> {
        Ok(Self {
            ids: prompt.to_vec(),
            shown_ids: 0,
            shown: tokenizer.decode(prompt)?,
        })
    }

    /// The text that one more token completes; empty if it completes none.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String> {
        self.ids.push(id);
        if tokenizer.ends_within_bytes(&self.ids) {
            return Ok(String::new());
        }
        let text = tokenizer.decode(&self.ids)?;
        let length = tokenizer.settled(&text);
        if text.ends_with(NO_CHARACTER) {
            return Ok(String::new());
        }
        let piece = self.show(&text[..length]);
        // Cleaning may depend on all text in front.
        if length == text.len() && !tokenizer.cleans() {
            self.forget(tokenizer)?;
        }
        Ok(piece)
    }

    /// The text of tokens that have none yet, though it ends within a character.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String> {
        let text = tokenizer.decode(&self.ids)?;
        Ok(self.show(&text))
    }

    /// Returns what of a text was not shown.
    fn show(&mut self, text: &str) -> String {
        let same = self
            .shown
            .chars()
            .zip(text.chars())
            .take_while(|(a, b)| a == b);
        let length: usize = same.map(|(c, _)| c.len_utf8()).sum();
        if length == text.len() {
            return String::new(); // a part of the prompt that may still change
        }
        self.shown = text.to_string();
        text[length..].to_string()
    }

    /// Leaves out tokens in front, where all text was shown before: what is kept still has text in front of the next.
    fn forget(&mut self, tokenizer: &Tokenizer) -> Result<()> {
        let shown = tokenizer.decode(&self.ids[self.shown_ids..])?;
        if !shown.is_empty() && self.shown_ids < self.ids.len() {
            self.ids.drain(..self.shown_ids);
            self.shown = shown;
        }
        self.shown_ids = self.ids.len();
        Ok(())
    }
}
