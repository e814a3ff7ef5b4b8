//! A model's prompts: texts that precede the input.

use std::collections::BTreeMap;
use std::fmt;

use crate::error::{Error, Result, from_name};

/// The texts' role in a search: sentence-transformers' `task`.
///
/// Pass it to [`TextEmbedder::embed_as`](crate::text::TextEmbedder::embed_as).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextRole {
    /// A text for which others are searched.
    Query,
    /// A text that is found.
    Document,
}

impl TextRole {
    /// Returns the name in sentence-transformers.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Document => "document",
        }
    }

    /// Returns names for the prompt before such texts; the first that a model has counts.
    pub(super) fn prompt_names(self) -> &'static [&'static str] {
        match self {
            Self::Query => &["query"],
            Self::Document => &["document", "passage", "corpus"], // as `encode_document` looks for them
        }
    }
}

impl fmt::Display for TextRole {
    /// Writes sentence-transformers' name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

from_name!(TextRole, "task", "query" => Self::Query, "document" => Self::Document);

/// The prompts that a model's files name.
#[derive(Clone, Debug, Default)]
pub(super) struct Prompts {
    pub by_name: BTreeMap<String, String>,
    /// The name of the default prompt.
    pub default: Option<String>,
}

impl Prompts {
    /// Returns the prompt with this name.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if there is none.
    pub fn named(&self, name: &str) -> Result<&str> {
        let known = || match self.by_name.is_empty() {
            true => "the model has no prompts".to_string(),
            false => format!(
                "the model has {:?}",
                self.by_name.keys().collect::<Vec<_>>()
            ),
        };
        let prompt = self.by_name.get(name).map(String::as_str);
        prompt.ok_or_else(|| Error::input("prompt", format!("{name:?} is unknown; {}", known())))
    }

    /// Returns the default prompt; empty if the files name none.
    ///
    /// # Errors
    /// The errors of [`Self::named`].
    pub fn default_prompt(&self) -> Result<&str> {
        let prompt = self.default.as_deref().map(|name| self.named(name));
        Ok(prompt.transpose()?.unwrap_or_default())
    }
}
