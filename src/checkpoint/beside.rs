//! Precedence between a GGUF file's own tokenizer and settings and the files beside it.

use super::config_json::ConfigJson;
use super::{Checkpoint, CheckpointOptions};
use crate::error::Result;
use candle_blocks_files::gguf::vocabulary::GgufTokenizer;

/// Files beside a GGUF file that may repeat what the GGUF file contains.
const FILES: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
];

/// Selects between a GGUF file's own tokenizer, chat template and end-of-text tokens and the files beside it:
/// `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja` and `generation_config.json`. Settings that the GGUF
/// file lacks always come from the files beside it. Has no effect on safetensors.
/// Pass it to [`CheckpointOptions::beside`](crate::CheckpointOptions::beside).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilesBeside {
    /// The GGUF file's own settings are used.
    #[default]
    Ignored,
    /// The files beside it are used, where they exist.
    First,
}

impl CheckpointOptions {
    /// Returns whether to ignore the files beside the file at a path.
    #[cfg(feature = "text")]
    pub(crate) fn leaves_out_beside(&self, path: &std::path::Path) -> bool {
        self.beside == FilesBeside::Ignored && super::gguf::is_gguf(path)
    }
}

impl Checkpoint {
    /// Returns the files beside a GGUF file that are not read because the GGUF file contains the same settings ([`FilesBeside`]).
    ///
    /// # Errors
    /// If the file's own tokenizer is malformed.
    pub fn ignored_beside(&self) -> Result<Vec<&'static str>> {
        if self.beside == FilesBeside::First || GgufTokenizer::read(&self.files)?.is_none() {
            return Ok(Vec::new());
        }
        let folder = self.files.directory();
        Ok({ FILES.into_iter() }
            .filter(|name| folder.join(name).exists())
            .collect())
    }

    /// Returns the pooling that the file declares, by its name in sentence-transformers; `None` if it declares none.
    ///
    /// # Errors
    /// If the pooling is unknown.
    #[cfg(feature = "text")]
    pub(crate) fn own_pooling(&self) -> Result<Option<&'static str>> {
        super::gguf::pooling(&self.files)
    }

    /// Returns the file's own settings as a `generation_config.json`, unless the file has none or one beside it takes
    /// precedence.
    ///
    /// # Errors
    /// If the settings are malformed.
    pub(crate) fn own_generation_config(&self) -> Result<Option<ConfigJson>> {
        if self.is_beside("generation_config.json") {
            return Ok(None);
        }
        let gguf = match GgufTokenizer::read(&self.files)? {
            Some(gguf) => Some(gguf),
            None => {
                GgufTokenizer::without_list(&self.files).filter(|gguf| !gguf.stops().is_empty())
            }
        };
        let given = |gguf: GgufTokenizer| ConfigJson::given(&gguf.path, gguf.generation_config());
        Ok(gguf.map(given))
    }

    fn is_beside(&self, name: &str) -> bool {
        self.beside == FilesBeside::First && self.files.directory().join(name).exists()
    }
}

#[cfg(feature = "text")]
impl candle_blocks_tokenizers::HasTokenizer for Checkpoint {
    fn own_tokenizer(&self) -> Result<Option<GgufTokenizer>> {
        match self.is_beside("tokenizer.json") {
            true => Ok(None),
            false => GgufTokenizer::read(&self.files),
        }
    }

    fn directory(&self) -> &std::path::Path {
        self.files.directory()
    }
}
