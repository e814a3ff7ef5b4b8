//! The tokens before a window's own: the caller's prompt, and the tokens of earlier windows. It follows transformers'
//! `WhisperGenerationMixin._prepare_decoder_input_ids`.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/whisper/generation_whisper.py>

use super::options::DecodingOptions;
use crate::checkpoint::config_json::ConfigJson;
use crate::error::{Error, Result, from_name};
use crate::text::Tokenizer;

/// The token before a prompt and before earlier text.
const START: &str = "<|startofprev|>";
/// The temperature from which on transformers does not let the next window read a window's tokens.
const HIGH_TEMPERATURE: f64 = 0.5;

/// The windows whose text the prompt precedes: transformers' `prompt_condition_type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PromptCondition {
    /// The prompt is the text before the first window; later windows read the windows before them in its place.
    #[default]
    FirstSegment,
    /// The prompt precedes the earlier text in each window.
    AllSegments,
}

from_name!(PromptCondition, "prompt_condition",
    "first-segment" => Self::FirstSegment,
    "all-segments" => Self::AllSegments,
);

/// The settings for tokens before a window.
#[derive(Clone, Debug)]
pub(super) struct Context {
    /// The token before earlier text.
    start: Option<u32>,
    /// The prompt with its first token; empty without one.
    prompt: Vec<u32>,
    condition: PromptCondition,
    /// `condition_on_prev_tokens`.
    reads_earlier: bool,
    /// The most tokens of earlier text.
    longest: usize,
}

/// A clip's tokens so far.
#[derive(Debug)]
pub(super) struct History<'c> {
    context: &'c Context,
    tokens: Vec<u32>,
    is_read: bool,
}

impl Context {
    /// Returns the caller's settings, and those of `generation_config.json` for others. `positions` is the decoder's number of positions.
    ///
    /// # Errors
    /// If a key has the wrong type, the tokenizer has no token for the beginning of a prompt, the prompt holds a special token, or
    /// it is to precede each window although these do not read earlier ones.
    pub fn new(
        json: &ConfigJson,
        options: &DecodingOptions,
        (tokenizer, suppressed): (&Tokenizer, &[u32]),
        positions: usize,
    ) -> Result<Self> {
        const KEY: &str = "condition_on_prev_tokens";
        let reads_earlier = match options.condition_on_prev_tokens {
            Some(reads) => reads,
            None => json.flag(&[KEY], false)?,
        };
        let condition = options.prompt_condition;
        if condition == PromptCondition::AllSegments && !reads_earlier {
            let reason = "\"all-segments\" needs condition_on_prev_tokens, which is false";
            return Err(Error::input("prompt_condition", reason));
        }
        // In older files, the second token from the end of those that are suppressed.
        let second_last = suppressed.iter().rev().nth(1).copied();
        let prompt = match &options.prompt {
            Some(text) => prompt(tokenizer, text)?,
            None => Vec::new(),
        };
        Ok(Self {
            start: json.parsed("prev_sot_token_id")?.or(second_last),
            prompt,
            condition,
            reads_earlier,
            longest: (positions / 2).saturating_sub(1),
        })
    }

    /// Begins a clip.
    pub fn begin(&self) -> History<'_> {
        let is_first_segment = self.condition == PromptCondition::FirstSegment;
        let tokens = self.prompt.iter().skip(1).filter(|_| is_first_segment);
        History {
            context: self,
            tokens: tokens.copied().collect(),
            is_read: self.reads_earlier,
        }
    }
}

/// Returns the prompt's tokens, as `WhisperTokenizer.get_prompt_ids` does.
fn prompt(tokenizer: &Tokenizer, text: &str) -> Result<Vec<u32>> {
    let fail = |reason: String| Err(Error::input("prompt", reason));
    let ids = tokenizer
        .encode_written(&format!("{START} {}", text.trim()))?
        .ids;
    let Some((start, own)) = ids.split_first() else {
        return fail("has no token".to_string());
    };
    if tokenizer.token(*start).as_deref() != Some(START) {
        return fail(format!("the tokenizer has no {START}; leave it out"));
    }
    if let Some(special) = own.iter().find(|&&id| tokenizer.is_special(id)) {
        let token = tokenizer.token(*special).unwrap_or_default();
        return fail(format!("holds the special token {token}; leave it out"));
    }
    Ok(ids)
}

impl History<'_> {
    /// Returns the tokens before the next window's own.
    pub fn before(&self) -> Vec<u32> {
        let context = self.context;
        if !self.is_read || self.tokens.is_empty() {
            return context.prompt.clone();
        }
        let first = match context.condition {
            PromptCondition::AllSegments if !context.prompt.is_empty() => context.prompt.clone(),
            _ => context.start.into_iter().collect(),
        };
        let cut = self.tokens.len().saturating_sub(context.longest);
        [&first, &self.tokens[cut..]].concat()
    }

    /// Adds a segment's tokens.
    pub fn add(&mut self, segment: &[u32], first_timestamp: u32) {
        // The second of two times at the end would begin another segment.
        let n_read = match segment {
            [_, .., before, _] if *before >= first_timestamp => segment.len() - 1,
            _ => segment.len(),
        };
        self.tokens.extend(&segment[..n_read]);
    }

    /// Decides whether the next window reads earlier text, by the temperature at which this one was decoded.
    pub fn end_window(&mut self, temperature: f64) {
        self.is_read = self.context.reads_earlier && temperature < HIGH_TEMPERATURE;
    }
}
