//! Texts to vectors.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Tensor;

use super::encoder::TextInput;
use super::prompts::Prompts;
use super::sentences::Sentences;
use super::{Pooling, TextOptions};
use crate::checkpoint::AppliedAdapter;
use crate::config::getters;
use crate::error::Result;
use crate::model::Model;

/// Makes vectors of texts, as sentence-transformers does.
///
/// A text's vector has the same bits alone and in any batch. Texts of unequal lengths are batched without computing padding.
///
/// ```no_run
/// use candle_blocks::text::TextEmbedder;
/// let embedder = TextEmbedder::open("all-MiniLM-L6-v2")?;
/// let vectors = embedder.embed(&["A man is eating food.", "Someone is having a meal."])?; // [2, 384]
/// let similarity = vectors.matmul(&vectors.t()?)?;
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TextEmbedder {
    sentences: Sentences,
    prompts: Prompts,
    notes: Vec<String>,
}

impl TextEmbedder {
    /// Opens a directory that sentence-transformers wrote, packed in f32 for inference on the CPU; [`TextOptions`] has other
    /// forms, and poolings for a plain encoder.
    ///
    /// # Errors
    /// As for [`TextOptions::embedder`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        TextOptions::default().embedder(directory)
    }

    /// Puts the parts together.
    pub(super) fn new(sentences: Sentences, prompts: Prompts, mut notes: Vec<String>) -> Self {
        notes.extend(sentences.encoder.tokenizer.notes());
        Self {
            sentences,
            prompts,
            notes,
        }
    }

    getters! {
        /// The model.
        model(&self) -> &Model => &self.sentences.encoder.model;
        /// The adapters that are part of its weights.
        adapters(&self) -> &[AppliedAdapter] => &self.sentences.encoder.adapters;
        /// The number of features of a vector.
        width(&self) -> usize => self.sentences.width();
        /// The number of tokens to which texts are shortened, if to any.
        max_length(&self) -> Option<usize> => self.sentences.encoder.max_length();
        /// The prompts of the model, by name.
        prompts(&self) -> &BTreeMap<String, String> => &self.prompts.by_name;
        /// Notes on what the files say and vectors do not follow.
        notes(&self) -> &[String] => &self.notes;
    }

    /// The poolings of the vectors of tokens, which are joined; none where the model's own pooler makes a text's vector.
    pub fn pooling(&self) -> &[Pooling] {
        let pooling = self.sentences.pooling();
        pooling.map_or(&[], |pooling| &pooling.poolings)
    }

    /// The prompt of this name, to be put in front of texts by [`Self::embed_prompted`].
    ///
    /// # Errors
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) if the model has none of this name.
    pub fn prompt(&self, name: &str) -> Result<&str> {
        self.prompts.named(name)
    }

    /// The vectors of some texts, `[n, width]` of f32 on the CPU, in their order. If the model has a default prompt, it is in
    /// front of every text.
    ///
    /// # Errors
    /// [`Error::Text`](crate::Error::Text) if a text gives no token, or one that the model does not have.
    pub fn embed<T: AsRef<str>>(&self, texts: &[T]) -> Result<Tensor> {
        self.embed_prompted(texts, self.prompts.default_prompt()?)
    }

    /// Like [`Self::embed`], with `prompt` in front of every text instead of a default. In a model whose texts go through a
    /// chat template, the prompt is the system's message.
    ///
    /// # Errors
    /// As for [`Self::embed`].
    pub fn embed_prompted<T: AsRef<str>>(&self, texts: &[T], prompt: &str) -> Result<Tensor> {
        let texts = texts.iter().map(|text| TextInput::One(text.as_ref()));
        self.sentences.vectors(&texts.collect::<Vec<_>>(), prompt)
    }
}
