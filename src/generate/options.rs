//! When generation ends, and what a checkpoint's `generation_config.json` says of it.

use super::Sampling;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::config_json::ConfigJson;
use crate::config::setters;
use crate::error::{Error, Result};

/// When generation ends, and which tokens it may not or must choose: the part of transformers' `GenerationConfig` that
/// does not depend on how tokens are chosen.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct GenerationOptions {
    /// The most tokens that are put behind a prompt.
    pub max_new_tokens: usize,
    /// Tokens that end a sequence. They are part of the result.
    pub stop_tokens: Vec<u32>,
    /// No sequence ends before it has so many new tokens.
    pub min_new_tokens: usize,
    /// What fills the rows of shorter sequences in [`Generation::padded`](super::Generation::padded): the checkpoint's token for
    /// padding, or else the first of those that end a sequence.
    pub pad_token: Option<u32>,
    /// The token that the decoder behind an encoder begins with.
    pub decoder_start: Option<u32>,
    /// Tokens that are never chosen.
    pub suppressed: Vec<u32>,
    /// Tokens that are not chosen first.
    pub suppressed_first: Vec<u32>,
    /// The new token behind prompts of one token, if it is not to be chosen.
    pub forced_first: Option<u32>,
    /// The last of `max_new_tokens`, if it is not to be chosen.
    pub forced_last: Option<u32>,
    /// How the checkpoint's authors would choose tokens, if they say so. Nothing is chosen so unless it is handed to a
    /// [`Sampler`](super::Sampler).
    pub recommended: Option<Sampling>,
}

impl Default for GenerationOptions {
    fn default() -> Self {
        Self {
            max_new_tokens: Self::MAX_NEW_TOKENS,
            stop_tokens: Vec::new(),
            min_new_tokens: 0,
            pad_token: None,
            decoder_start: None,
            suppressed: Vec::new(),
            suppressed_first: Vec::new(),
            forced_first: None,
            forced_last: None,
            recommended: None,
        }
    }
}

impl GenerationOptions {
    /// The most new tokens unless told otherwise.
    pub const MAX_NEW_TOKENS: usize = 256;

    /// What the checkpoint's `generation_config.json` says, or its `config.json` where there is none. A GGUF file says it itself
    /// ([`Beside`](crate::checkpoint::Beside)).
    ///
    /// # Errors
    /// If the file cannot be read, or a value in it is not what its key is for.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        if let Some(json) = checkpoint.own_generation_config()? {
            return Self::read(&json);
        }
        let folder = checkpoint.files().directory();
        let files = ["generation_config.json", "config.json"].map(|name| folder.join(name));
        match files.iter().find(|path| path.exists()) {
            Some(path) => Self::read(&ConfigJson::open(path)?),
            None => Ok(Self::default()),
        }
    }

    fn read(json: &ConfigJson) -> Result<Self> {
        let tokens = |key| Ok::<_, Error>(json.token_ids(key)?.unwrap_or_default());
        let first = |key| Ok::<_, Error>(tokens(key)?.first().copied());
        let stop_tokens = tokens("eos_token_id")?;
        let default = Self::default();
        Ok(Self {
            max_new_tokens: json.size_or(&["max_new_tokens"], default.max_new_tokens)?,
            min_new_tokens: json.size_or(&["min_new_tokens"], 0)?,
            pad_token: first("pad_token_id")?.or(stop_tokens.first().copied()),
            decoder_start: first("decoder_start_token_id")?,
            suppressed: tokens("suppress_tokens")?,
            suppressed_first: tokens("begin_suppress_tokens")?,
            forced_first: first("forced_bos_token_id")?,
            forced_last: first("forced_eos_token_id")?,
            recommended: match json.flag(&["do_sample"], false)? {
                true => Some(Sampling::read(json)?),
                false => None,
            },
            stop_tokens,
        })
    }

    setters! {
        /// Sets the most tokens that are put behind a prompt.
        with_max_new_tokens(n: usize) => max_new_tokens = n;
        /// Sets how many new tokens a sequence has at least.
        with_min_new_tokens(n: usize) => min_new_tokens = n;
        /// Sets the tokens that end a sequence.
        with_stop_tokens(tokens: Vec<u32>) => stop_tokens = tokens;
        /// Sets what fills the rows of shorter sequences.
        with_pad_token(token: u32) => pad_token = Some(token);
    }
}
