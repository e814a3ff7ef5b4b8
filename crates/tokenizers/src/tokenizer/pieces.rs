//! Converts generated tokens to text in whole characters.

use crate::Tokenizer;
use candle_blocks_base::Result;

/// A decoder writes this for bytes that are not a character, or not yet.
const NO_CHARACTER: char = '\u{fffd}';

/// Converts tokens to text piece by piece. The pieces add up to the text of all tokens after the prompt's text.
///
/// A piece is returned once later tokens cannot change it. A character is returned with its last byte. With byte fallback, a
/// run of bytes is returned with the token after it, because an invalid byte makes the whole run invalid. If the prompt ends
/// within a character, the piece has the whole character.
#[derive(Clone, Debug, Default)]
#[doc(hidden)]
pub struct TextPieces {
    /// The tokens that are decoded. They begin where a text began, because decoding depends on the preceding tokens.
    ids: Vec<u32>,
    /// The number of tokens before the last point at which all text was returned.
    shown_ids: usize,
    /// The tokens' text that was returned.
    shown: String,
}

impl TextPieces {
    /// Starts after a prompt.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn after(tokenizer: &Tokenizer, prompt: &[u32]) -> Result<Self> {
        Ok(Self {
            ids: prompt.to_vec(),
            shown_ids: 0,
            shown: tokenizer.decode(prompt)?,
        })
    }

    /// Returns the text that one more token completes; empty if it completes none.
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
        // Cleaning may depend on all preceding text.
        if length == text.len() && !tokenizer.cleans() {
            self.forget(tokenizer)?;
        }
        Ok(piece)
    }

    /// Returns the remaining text, even if it ends within a character.
    ///
    /// # Errors
    /// If the tokenizer fails.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String> {
        let text = tokenizer.decode(&self.ids)?;
        Ok(self.show(&text))
    }

    /// Returns the part of a text that was not returned yet.
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

    /// Drops the first tokens, up to a point where all text was returned; the remaining ones still precede the next token.
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
