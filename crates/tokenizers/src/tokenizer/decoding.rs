//! Converts tokens to text.

use tokenizers::{Decoder, DecoderWrapper, ModelWrapper};

use super::Tokenizer;
use super::config::cleaned;
use crate::tokenizer_class::PythonTokens;
use candle_blocks_base::Result;
use candle_blocks_files::config_json::ConfigJson;

/// The treatment of special tokens in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum SpecialTokens {
    Kept,
    LeftOut,
}

/// Settings that affect decoding.
#[derive(Clone, Debug, Default)]
pub(super) struct Decoding {
    /// Bytes outside the vocabulary are tokens such as `<0xE2>`.
    has_byte_fallback: bool,
    /// Spaces before punctuation are removed: `clean_up_tokenization_spaces`.
    cleans: bool,
    /// The suffix of a word's last token, which becomes a space.
    word_end: Option<String>,
}

impl Decoding {
    pub fn of(
        inner: &tokenizers::Tokenizer,
        config: Option<&ConfigJson>,
        word_end: Option<&str>,
    ) -> Result<Self> {
        let flag = |key: &str| config.map_or(Ok(false), |config| config.flag(&[key], false));
        let cleans = flag("clean_up_tokenization_spaces")?;
        // As in transformers, which checks twice because cleaning would damage BPE texts.
        let is_bpe = matches!(inner.get_model(), ModelWrapper::BPE(_));
        let insists =
            flag("clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output")?;
        Ok(Self {
            has_byte_fallback: inner.get_decoder().is_some_and(falls_back),
            cleans: cleans && (!is_bpe || insists),
            word_end: word_end.map(str::to_string),
        })
    }
}

fn falls_back(decoder: &DecoderWrapper) -> bool {
    match decoder {
        DecoderWrapper::ByteFallback(_) => true,
        DecoderWrapper::Sequence(all) => all.get_decoders().iter().any(falls_back),
        _ => false,
    }
}

impl Tokenizer {
    /// Returns the text of tokens, without special ones.
    ///
    /// # Errors
    /// [`Error::Tokenizer`](candle_blocks_base::Error::Tokenizer) if the tokenizer fails.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.decoded(ids, SpecialTokens::LeftOut)
    }

    /// Returns the text of tokens, with or without special ones.
    ///
    /// # Errors
    /// The errors of [`Self::decode`].
    #[doc(hidden)]
    pub fn decoded(&self, ids: &[u32], special: SpecialTokens) -> Result<String> {
        let leaves_out = special == SpecialTokens::LeftOut;
        let decoded = match &self.python {
            Some(python) => python.decoded(&self.inner, ids, leaves_out),
            None => self.inner.decode(ids, leaves_out),
        };
        let mut text = decoded.map_err(|error| self.fail(error.to_string()))?;
        if let Some(end) = &self.decoding.word_end {
            text = text.replace(end, " ").trim().to_string();
        }
        Ok(match self.decoding.cleans {
            true => cleaned(&text),
            false => text,
        })
    }

    /// Returns the text of tokens, given as strings: transformers' `convert_tokens_to_string`.
    ///
    /// # Errors
    /// The errors of [`Self::decode`].
    #[doc(hidden)]
    pub fn joined(&self, tokens: Vec<String>) -> Result<String> {
        match (&self.python, self.inner.get_decoder()) {
            (Some(python), _) => Ok(python.joined(&self.inner, &tokens)),
            (None, Some(decoder)) => {
                let text = decoder.decode(tokens);
                text.map_err(|error| self.fail(error.to_string()))
            }
            (None, None) => Ok(tokens.join(" ")),
        }
    }

    /// Returns whether the tokens end with a run of bytes, which the next token may continue or invalidate.
    #[doc(hidden)]
    pub fn ends_within_bytes(&self, ids: &[u32]) -> bool {
        if let Some(python) = &self.python {
            return python.may_go_on(&self.inner, ids);
        }
        let added = self.inner.get_added_vocabulary();
        let is_left_out = |token: &String| added.is_special_token(token);
        let mut tokens = ids
            .iter()
            .rev()
            .filter_map(|&id| self.inner.id_to_token(id));
        self.decoding.has_byte_fallback
            && tokens
                .find(|token| !is_left_out(token))
                .is_some_and(|token| {
                    let digits = token
                        .strip_prefix("<0x")
                        .and_then(|rest| rest.strip_suffix('>'));
                    digits.is_some_and(|digits| {
                        digits.len() == 2 && u8::from_str_radix(digits, 16).is_ok()
                    })
                })
    }

    /// Returns the bytes of a token of a class in Python, if they are its own alone.
    #[doc(hidden)]
    pub fn bytes_of(&self, id: u32) -> Option<Vec<u8>> {
        self.python.as_ref()?.bytes_of(&self.inner, id)
    }

    /// Returns whether the text of a token depends on the next one, as in PhoBERT.
    #[doc(hidden)]
    pub fn depends_on_next_token(&self) -> bool {
        matches!(self.python.as_deref(), Some(PythonTokens::Words(_)))
    }

    /// Returns whether spaces before punctuation are removed from texts.
    #[doc(hidden)]
    pub fn cleans(&self) -> bool {
        self.decoding.cleans
    }

    /// Returns the length of the text that further tokens cannot change.
    #[doc(hidden)]
    pub fn settled(&self, text: &str) -> usize {
        if !self.decoding.cleans {
            return text.len();
        }
        // A cleaned pattern begins with a space and has at most four characters.
        let from = text.char_indices().rev().nth(3).map_or(0, |(at, _)| at);
        let space = text[from..].find(' ').map(|at| from + at);
        space.map_or(text.len(), |at| text[..at].trim_end_matches(' ').len())
    }

    /// Returns whether a token is special, such as an end-of-text token.
    pub fn is_special(&self, id: u32) -> bool {
        let token = self.inner.id_to_token(id);
        token.is_some_and(|t| self.inner.get_added_vocabulary().is_special_token(&t))
    }
}
