//! Options for loading a model that reads images.

use std::path::Path;

use candle_core::{DType, Device};

use crate::config::{HeadTask, Precision};
use crate::error::{Error, Result, setters};
use crate::pictures::runs::ImageReader;
use crate::pictures::{
    Backend, ImageClassifier, ImageEmbedder, ImageProcessor, ZeroShotImageClassifier,
};
use crate::text::sentence_files::model_folder;
use crate::text::{FunctionToApply, ScoreFunction, WeightForm, without_effect};
use crate::{Checkpoint, CheckpointOptions};

/// Options for opening an [`ImageClassifier`], an [`ImageEmbedder`] or a [`ZeroShotImageClassifier`]. By default the files
/// determine everything, and the model is packed in f32 for inference on the CPU.
///
/// ```no_run
/// use candle_blocks::{Precision, pictures::{Backend, ImageOptions}};
/// let classifier = ImageOptions::default()
///     .precision(Precision::Bf16)
///     .backend(Backend::Pil) // transformers without torchvision
///     .classifier("vit-base-patch16-224")?;
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ImageOptions {
    checkpoint: CheckpointOptions,
    form: WeightForm,
    backend: Backend,
    function_to_apply: Option<FunctionToApply>,
}

impl ImageOptions {
    setters! {
        /// Sets the options for opening the checkpoint.
        checkpoint(options: CheckpointOptions) => checkpoint = options;
        /// Packs the weights for the CPU in this precision.
        precision(precision: Precision) => form = WeightForm::Packed(precision);
        /// Selects the library whose results resizing and normalization have.
        backend(backend: Backend) => backend = backend;
        /// Sets the function that converts a classifier's logits to scores, overriding the files.
        function_to_apply(function: FunctionToApply) => function_to_apply = Some(function);
    }

    /// Loads the weights unpacked, in this dtype and on this device.
    pub fn device(mut self, dtype: DType, device: &Device) -> Self {
        self.form = WeightForm::Plain(dtype, device.clone());
        self
    }

    /// Opens a classifier with the model's own labels.
    ///
    /// # Errors
    /// If the checkpoint has no head for image classification, or a file is missing or malformed.
    pub fn classifier(self, path: impl AsRef<Path>) -> Result<ImageClassifier> {
        let path = path.as_ref();
        let checkpoint = self.checkpoint.clone().whole().open(path)?;
        let task = HeadTask::ImageClassification;
        let head = checkpoint.model_config()?.head.as_ref();
        if head.is_none_or(|head| head.task != task) {
            let found = match head {
                Some(head) => format!("its head has the task {}", head.task),
                None => "it has no head".to_string(),
            };
            let cure = match checkpoint.second_stack()? {
                Some(_) => "name labels, which its text tower reads (`ZeroShotImageClassifier`)",
                None => {
                    "use a checkpoint whose `architectures` in config.json names a class that ends with ForImageClassification"
                }
            };
            return Err(Error::InvalidConfig(format!(
                "{} gives images no labels: {found}; {cure}",
                path.display()
            )));
        }
        let labels = checkpoint.labels()?;
        let json = checkpoint.config_json()?;
        let scoring = match self.function_to_apply {
            Some(function) => function.into(),
            None => ScoreFunction::of_pipeline(json.as_ref(), labels.len())?,
        };
        let model = checkpoint.load(self.form.weights()).model()?;
        let reader = self.reader(&checkpoint)?;
        Ok(ImageClassifier::new(model, reader, labels, scoring))
    }

    /// Opens a model whose vectors are those of whole images. A folder of sentence-transformers' `CLIPModel` has it in a
    /// subfolder.
    ///
    /// # Errors
    /// If the model reads no images, or a file is missing or malformed.
    pub fn embedder(self, path: impl AsRef<Path>) -> Result<ImageEmbedder> {
        self.refuse_function("vectors")?;
        let path = model_folder(path.as_ref())?;
        let checkpoint = self.checkpoint.clone().whole().open(path)?;
        let loader = checkpoint.load(self.form.weights());
        let reader = self.reader(&checkpoint)?;
        let config = checkpoint.model_config()?;
        let is_labels = |task| task == HeadTask::ImageClassification;
        let model = match checkpoint.second_stack()? {
            Some(_) => loader.two_towers()?.vision().clone(),
            None if config.pooler.is_none()
                && config
                    .head
                    .as_ref()
                    .is_some_and(|head| is_labels(head.task)) =>
            {
                loader.base_model()?
            }
            None => loader.model()?,
        };
        ImageEmbedder::new(model, reader)
    }

    /// Opens a classifier for labels that the caller names, by a model that compares texts with images (CLIP, SigLIP).
    ///
    /// # Errors
    /// If the checkpoint has no text tower beside one for images, or a file is missing or malformed.
    pub fn zero_shot_classifier(self, path: impl AsRef<Path>) -> Result<ZeroShotImageClassifier> {
        self.refuse_function("labels of the caller")?;
        let path = &model_folder(path.as_ref())?;
        let checkpoint = self.checkpoint.clone().whole().open(path)?;
        if checkpoint.second_stack()?.is_none() {
            return Err(Error::InvalidConfig(format!(
                "{}: labels of the caller need a model of two towers, for texts and for images, such as CLIP or SigLIP; this one \
                 has one (`ImageClassifier` gives its own labels)",
                path.display()
            )));
        }
        let towers = checkpoint.load(self.form.weights()).two_towers()?;
        let reader = self.reader(&checkpoint)?;
        ZeroShotImageClassifier::new(towers, reader, &checkpoint)
    }

    fn reader(&self, checkpoint: &Checkpoint) -> Result<ImageReader> {
        let processor = ImageProcessor::open(checkpoint.files().directory())?;
        Ok(ImageReader {
            processor: processor.with_backend(self.backend)?,
            dtype: self.form.dtype(),
        })
    }

    /// Refuses an option that scores of the model's own labels alone have.
    fn refuse_function(&self, result: &str) -> Result<()> {
        match self.function_to_apply {
            None => Ok(()),
            Some(_) => Err(without_effect("function_to_apply", result)),
        }
    }
}
