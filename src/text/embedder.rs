//! Texts to vectors.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{Device, Tensor};

use super::encoder::{Encoder, host};
use super::{Pooling, TextOptions, sentence_files::SentenceFiles, stages::Stage};
use crate::config::getters;
use crate::error::{Error, Result};
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
    encoder: Encoder,
    pooling: Vec<Pooling>,
    skip_prompt: bool,
    stages: Vec<Stage>,
    prompts: BTreeMap<String, String>,
    default_prompt: Option<String>,
    width: usize,
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
    pub(super) fn new(encoder: Encoder, files: SentenceFiles, d_model: usize) -> Result<Self> {
        let mut width = d_model * files.pooling.len();
        for stage in &files.stages {
            width = stage.width(width)?;
        }
        Ok(Self {
            encoder,
            pooling: files.pooling,
            skip_prompt: files.skip_prompt,
            stages: files.stages,
            prompts: files.prompts,
            default_prompt: files.default_prompt,
            width,
        })
    }

    getters! {
        /// The model.
        model(&self) -> &Model => &self.encoder.model;
        /// The number of features of a vector.
        width(&self) -> usize => self.width;
        /// How the vectors of tokens become one; several are joined.
        pooling(&self) -> &[Pooling] => &self.pooling;
        /// The number of tokens to which texts are shortened, if to any.
        max_length(&self) -> Option<usize> => self.encoder.max_length();
        /// The prompts of the model, by name.
        prompts(&self) -> &BTreeMap<String, String> => &self.prompts;
    }

    /// The prompt of this name, to be put in front of texts by [`Self::embed_prompted`].
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the model has none of this name.
    pub fn prompt(&self, name: &str) -> Result<&str> {
        let known = || match self.prompts.is_empty() {
            true => "the model has no prompts".to_string(),
            false => format!(
                "the model has {:?}",
                self.prompts.keys().collect::<Vec<_>>()
            ),
        };
        let prompt = self.prompts.get(name).map(String::as_str);
        prompt.ok_or_else(|| Error::input("prompt", format!("{name:?} is not known; {}", known())))
    }

    /// The vectors of some texts, `[n, width]` of f32 on the CPU, in their order. If the model has a default prompt, it is in
    /// front of every text.
    ///
    /// # Errors
    /// [`Error::Text`] if a text gives no token, or one that the model does not have.
    pub fn embed<T: AsRef<str>>(&self, texts: &[T]) -> Result<Tensor> {
        let prompt = self.default_prompt.as_deref();
        let prompt = prompt.map(|name| self.prompt(name)).transpose()?;
        self.embed_prompted(texts, prompt.unwrap_or_default())
    }

    /// Like [`Self::embed`], with `prompt` in front of every text instead of a default.
    ///
    /// # Errors
    /// As for [`Self::embed`].
    pub fn embed_prompted<T: AsRef<str>>(&self, texts: &[T], prompt: &str) -> Result<Tensor> {
        let encoded = match prompt {
            "" => self.encoder.encode(texts.iter().map(AsRef::as_ref))?,
            _ => {
                let prompted = texts
                    .iter()
                    .map(|text| format!("{prompt}{}", text.as_ref()));
                self.encoder.encode(prompted)?
            }
        };
        let skipped = match self.skip_prompt && !prompt.is_empty() {
            true => self.prompt_length(prompt)?,
            false => 0,
        };
        let d_model = self.width_of_tokens();
        let width = d_model * self.pooling.len();
        let mut pooled = vec![0f32; texts.len() * width];
        self.encoder.run(&encoded, |batch, output| {
            let (_, seq, _) = output.last_hidden_state.dims3()?;
            let hidden = host(&output.last_hidden_state)?;
            let mut vector = Vec::with_capacity(width);
            for (sequence, &text) in hidden.chunks_exact(seq * d_model).zip(batch) {
                let rows = &sequence[..encoded[text].ids.len() * d_model];
                vector.clear();
                for pooling in &self.pooling {
                    pooling.pool(rows, d_model, skipped, &mut vector);
                }
                pooled[text * width..][..width].copy_from_slice(&vector);
            }
            Ok(())
        })?;
        let mut vectors = Tensor::from_vec(pooled, (texts.len(), width), &Device::Cpu)?;
        for stage in &self.stages {
            vectors = stage.forward(&vectors)?;
        }
        Ok(vectors)
    }

    /// The number of tokens of a prompt, without a special one that ends a text.
    fn prompt_length(&self, prompt: &str) -> Result<usize> {
        let ids = self.encoder.tokenizer.encode(prompt)?.ids;
        let ends = ids
            .last()
            .is_some_and(|&id| self.encoder.tokenizer.is_special(id));
        Ok(ids.len() - usize::from(ends))
    }

    fn width_of_tokens(&self) -> usize {
        self.model().config().output_width()
    }
}
