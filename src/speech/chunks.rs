//! A Whisper transcript's text and times: transformers' `_decode_asr`, for one clip's tokens.
//!
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/whisper/tokenization_whisper.py>

use super::transcript::{Chunk, Transcript};
use crate::error::Result;
use crate::generate::language_of_token;
use crate::text::Tokenizer;

/// The timestamps in a window, by which later windows are moved.
const SEGMENT_SIZE: f64 = 1500.0;

/// A model's timestamp tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimestampTokens {
    /// The token for 0 seconds; `u32::MAX` if the model has none.
    pub first: u32,
    /// The seconds from token to token.
    pub precision: f64,
}

/// A transcript's part, as tokens.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TokenChunk {
    pub timestamp: (Option<f64>, Option<f64>),
    /// Its text's tokens, each by its index in the transcript.
    pub tokens: Vec<usize>,
    /// The language that a token named, if any did.
    pub language: Option<&'static str>,
}

/// How timestamps are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Splitting {
    /// Chunks end where another language begins.
    Languages,
    /// Chunks end with their segment.
    Timestamps,
}

/// Returns a transcript's parts.
pub(super) fn split(
    tokenizer: &Tokenizer,
    tokens: &[u32],
    times: TimestampTokens,
    splitting: Splitting,
) -> Vec<TokenChunk> {
    let mut chunks = Vec::new();
    let mut chunk = TokenChunk::default();
    let mut language = None;
    let (mut latest, mut before_latest, mut earlier) = (0.0, 0.0, 0.0);
    let is_time = |token: u32| token >= times.first;
    for (i, &token) in tokens.iter().enumerate() {
        if tokenizer.is_special(token) {
            let Some(named) = tokenizer
                .token(token)
                .and_then(|text| language_of_token(&text))
            else {
                continue;
            };
            if language.is_some_and(|last| last != named) && splitting == Splitting::Languages {
                chunks.push(std::mem::take(&mut chunk));
            }
            (chunk.language, language) = (Some(named), Some(named));
            continue;
        }
        if !is_time(token) {
            chunk.tokens.push(i);
            continue;
        }
        let steps = f64::from(token - times.first);
        let time = steps * times.precision;
        if time < latest {
            // Another window has begun.
            let ended_with_one_time = i >= 2 && !(is_time(tokens[i - 1]) && is_time(tokens[i - 2]));
            if ended_with_one_time {
                earlier += times.precision * SEGMENT_SIZE;
            } else {
                latest = before_latest;
                earlier += before_latest;
            }
        }
        (before_latest, latest) = (latest, time);
        let time = rounded(time + earlier);
        match chunk.timestamp.0 {
            None => chunk.timestamp.0 = Some(time),
            // The model repeats a time that begins a segment.
            Some(start) if start == time => {}
            Some(_) => {
                chunk.timestamp.1 = Some(time);
                let next = TokenChunk {
                    language,
                    ..TokenChunk::default()
                };
                chunks.push(std::mem::replace(&mut chunk, next));
            }
        }
    }
    if !chunk.tokens.is_empty() {
        chunks.push(chunk);
    }
    chunks
}

/// Returns each part's text, and their concatenation.
///
/// # Errors
/// If the tokenizer fails.
pub(super) fn decoded(
    tokenizer: &Tokenizer,
    tokens: &[u32],
    chunks: &[TokenChunk],
) -> Result<Transcript> {
    let chunk = |of: &TokenChunk| {
        let ids: Vec<u32> = of.tokens.iter().map(|&i| tokens[i]).collect();
        Ok(Chunk {
            text: tokenizer.decode(&ids)?,
            timestamp: of.timestamp,
        })
    };
    let chunks = chunks.iter().map(chunk).collect::<Result<Vec<_>>>()?;
    Ok(Transcript {
        text: chunks.iter().map(|chunk| chunk.text.as_str()).collect(),
        chunks,
    })
}

/// Python's `round(x, 2)`: the nearest number with two decimals; if two are equally near, the even one.
pub(super) fn rounded(x: f64) -> f64 {
    format!("{x:.2}").parse().unwrap_or(x)
}
