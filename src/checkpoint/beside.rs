//! Which of two says what a GGUF file's words and settings are: itself, or the files beside it.

use super::config_json::ConfigJson;
use super::gguf::Words;
use super::{Checkpoint, CheckpointOptions};
use crate::error::Result;

/// What may lie beside a GGUF file that says the same of itself.
const FILES: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
];

/// Whether files beside a GGUF file go before what it says itself of its tokenizer, its chat template and where texts end:
/// `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` and `generation_config.json`. What a file does not say at all
/// is taken from beside it in any case; so is everything beside safetensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Beside {
    /// They do not.
    #[default]
    Ignored,
    /// They do, where they are there.
    First,
}

impl CheckpointOptions {
    /// Whether files beside the one at a path are left alone.
    #[cfg(feature = "text")]
    pub(crate) fn leaves_out_beside(&self, path: &std::path::Path) -> bool {
        self.beside == Beside::Ignored && super::gguf::is_gguf(path)
    }
}

impl Checkpoint {
    /// Files beside a GGUF file that say what it says itself, and are not read ([`Beside`]).
    ///
    /// # Errors
    /// If the file's own words are malformed.
    pub fn ignored_beside(&self) -> Result<Vec<&'static str>> {
        if self.beside == Beside::First || Words::read(&self.files)?.is_none() {
            return Ok(Vec::new());
        }
        let folder = self.files.directory();
        Ok({ FILES.into_iter() }
            .filter(|name| folder.join(name).exists())
            .collect())
    }

    /// How the vectors of tokens become one, by the name that sentence-transformers has for it; `None` if the file does not say.
    ///
    /// # Errors
    /// If it is none of those that are known.
    #[cfg(feature = "text")]
    pub(crate) fn own_pooling(&self) -> Result<Option<&'static str>> {
        super::gguf::pooling(&self.files)
    }

    /// The words that the file holds, unless those of a `tokenizer.json` beside it are wanted.
    ///
    /// # Errors
    /// If they are malformed.
    #[cfg(feature = "text")]
    pub(crate) fn words(&self) -> Result<Option<Words>> {
        match self.is_beside("tokenizer.json") {
            true => Ok(None),
            false => Words::read(&self.files),
        }
    }

    /// The `generation_config.json` that the file itself stands for, unless one beside it is wanted or the file says nothing.
    ///
    /// # Errors
    /// If it is malformed.
    pub(crate) fn own_generation_config(&self) -> Result<Option<ConfigJson>> {
        if self.is_beside("generation_config.json") {
            return Ok(None);
        }
        let words = match Words::read(&self.files)? {
            Some(words) => Some(words),
            None => Words::without_list(&self.files).filter(|words| !words.stops().is_empty()),
        };
        let given = |words: Words| ConfigJson::given(&words.path, words.generation_config());
        Ok(words.map(given))
    }

    fn is_beside(&self, name: &str) -> bool {
        self.beside == Beside::First && self.files.directory().join(name).exists()
    }
}
