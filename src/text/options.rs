//! How a model that reads texts is loaded.

use std::path::Path;

use candle_core::{DType, Device};

use super::encoder::Encoder;
use super::sentence_files::SentenceFiles;
use super::stages::Stage;
use super::{Pooling, TextClassifier, TextEmbedder};
use crate::CheckpointOptions;
use crate::checkpoint::write::directory;
use crate::config::{Precision, setters};
use crate::error::{Error, Result};

/// Options for opening a [`TextEmbedder`] or a [`TextClassifier`]; by default the files decide, and the model is packed in
/// f32 for inference on the CPU.
///
/// ```no_run
/// use candle_blocks::text::{Pooling, TextOptions};
/// let embedder = TextOptions::default()
///     .pooling([Pooling::Mean]) // of a plain encoder, whose files name none
///     .normalize(true)
///     .embedder("bert-base-uncased")?;
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct TextOptions {
    checkpoint: CheckpointOptions,
    form: Form,
    max_length: Option<usize>,
    pooling: Vec<Pooling>,
    normalize: Option<bool>,
}

/// The form of the weights.
#[derive(Clone, Debug)]
enum Form {
    Packed(Precision),
    Plain(DType, Device),
}

impl Default for Form {
    fn default() -> Self {
        Self::Packed(Precision::F32)
    }
}

impl TextOptions {
    setters! {
        /// Sets how the checkpoint is opened.
        checkpoint(options: CheckpointOptions) => checkpoint = options;
        /// Packs the weights for the CPU in this precision.
        precision(precision: Precision) => form = Form::Packed(precision);
        /// Shortens texts to this many tokens, special ones included.
        max_length(max_length: usize) => max_length = Some(max_length);
        /// Sets whether vectors are divided by their lengths, whatever the files say.
        normalize(normalize: bool) => normalize = Some(normalize);
    }

    /// Loads the weights unpacked, in this type and on this device.
    pub fn device(mut self, dtype: DType, device: &Device) -> Self {
        self.form = Form::Plain(dtype, device.clone());
        self
    }

    /// Sets the pooling, whatever the files say; several are joined.
    pub fn pooling(mut self, pooling: impl IntoIterator<Item = Pooling>) -> Self {
        self.pooling = pooling.into_iter().collect();
        self
    }

    /// Opens an embedder: a directory with `modules.json`, or a plain encoder with a pooling of the caller's.
    ///
    /// # Errors
    /// If there is no `modules.json` and no pooling is given, a file is missing or malformed, a module, pooling or activation
    /// is not known, or the tokenizer is another model's.
    pub fn embedder(self, path: impl AsRef<Path>) -> Result<TextEmbedder> {
        let path = path.as_ref();
        std::fs::metadata(path).map_err(|cause| Error::io(path, "read", cause))?;
        let directory = match path.is_file() {
            true => directory(path), // of the weights
            false => path,
        };
        let mut files = match self.checkpoint.leaves_out_beside(path) {
            true => SentenceFiles::none(directory),
            false => SentenceFiles::open(directory)?,
        };
        if !self.pooling.is_empty() {
            files.pooling = self.pooling;
        }
        if let Some(normalize) = self.normalize {
            files
                .stages
                .retain(|stage| !matches!(stage, Stage::Normalize));
            files.stages.extend(normalize.then_some(Stage::Normalize));
        }
        let is_elsewhere = files.model != directory;
        let model = if is_elsewhere { &files.model } else { path };
        let checkpoint = self.checkpoint.open(model)?;
        if let (true, Some(name)) = (files.pooling.is_empty(), checkpoint.own_pooling()?) {
            files.pooling.push(name.parse()?);
        }
        if files.pooling.is_empty() {
            let reason = "there is no modules.json, so how the vectors of tokens become one is not known; name a pooling, \
                          which for most encoders is \"mean\" or \"cls\" (`TextOptions::pooling`)";
            let message = format!("{}: {reason}", directory.display());
            return Err(Error::InvalidConfig(message));
        }
        let model = match &self.form {
            Form::Packed(precision) => checkpoint.packed_base_model(*precision),
            Form::Plain(dtype, device) => checkpoint.base_model(*dtype, device),
        }?;
        let d_model = model.config().output_width();
        let max_length = self.max_length.or(files.max_length);
        let mut encoder = Encoder::new(model, &checkpoint, max_length)?;
        if files.lower_case {
            encoder.tokenizer.lower_case()?;
        }
        TextEmbedder::new(encoder, files, d_model)
    }

    /// Opens a classifier or a cross-encoder.
    ///
    /// # Errors
    /// If the checkpoint has no head for labels of texts, a file is missing or malformed, or the tokenizer is another model's.
    pub fn classifier(self, path: impl AsRef<Path>) -> Result<TextClassifier> {
        let checkpoint = self.checkpoint.open(path)?;
        let model = match &self.form {
            Form::Packed(precision) => checkpoint.packed_model(*precision),
            Form::Plain(dtype, device) => checkpoint.model(*dtype, device),
        }?;
        let json = checkpoint.config_json()?;
        let encoder = Encoder::new(model, &checkpoint, self.max_length)?;
        TextClassifier::new(encoder, &checkpoint, json.as_ref())
    }
}
