//! Labels that a caller names, compared with images by a model of two towers.

use std::path::Path;

use candle_blocks_media::pictures::Image;
use candle_core::{Device, Tensor};

use super::labels::LabelReader;
use super::runs::ImageReader;
use super::{ImageOptions, ImageProcessor};
use crate::Checkpoint;
use crate::config::Activation;
use crate::error::{Result, getters};
use crate::model::{TwoTowers, of_length_one};
use crate::text::{HypothesisTemplate, RankedLabels, ScoreFunction, host};

/// Scores labels that the caller names for images, by CLIP, MetaCLIP 2 or SigLIP: transformers' zero-shot image classification
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/pipelines/zero_shot_image_classification.py>).
///
/// The scores of CLIP sum to 1 over the labels; SigLIP scores each label alone.
///
/// ```no_run
/// use candle_blocks::pictures::{Image, ZeroShotImageClassifier};
/// let classifier = ZeroShotImageClassifier::open("clip-vit-base-patch32")?;
/// let ranking = &classifier.classify(&[Image::open("cat.jpg")?], &["a cat", "a dog"])?[0];
/// println!("{} {}", ranking.labels[0], ranking.scores[0]);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ZeroShotImageClassifier {
    towers: TwoTowers,
    images: ImageReader,
    labels: LabelReader,
    template: HypothesisTemplate,
    scoring: ScoreFunction,
}

impl ZeroShotImageClassifier {
    /// Opens a checkpoint's folder, packed in f32 for inference on the CPU. [`ImageOptions`] has more options.
    ///
    /// # Errors
    /// The errors of [`ImageOptions::zero_shot_classifier`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        ImageOptions::default().zero_shot_classifier(directory)
    }

    pub(super) fn new(
        towers: TwoTowers,
        images: ImageReader,
        checkpoint: &Checkpoint,
    ) -> Result<Self> {
        let json = checkpoint.config_json()?;
        let model_type = match &json {
            Some(json) => json.text(&["model_type"])?.unwrap_or_default(),
            None => String::new(),
        };
        let is_siglip = model_type.contains("siglip");
        Ok(Self {
            labels: LabelReader::new(towers.text(), is_siglip, checkpoint)?,
            towers,
            images,
            template: "This is a photo of {}.".parse()?,
            scoring: match is_siglip {
                true => ScoreFunction::Each(Activation::Sigmoid),
                false => ScoreFunction::Softmax,
            },
        })
    }

    /// Sets the sentence about a label. The default is transformers', `This is a photo of {}.`
    #[must_use]
    pub fn with_template(mut self, template: HypothesisTemplate) -> Self {
        self.template = template;
        self
    }

    getters! {
        /// Returns the model.
        towers(&self) -> &TwoTowers => &self.towers;
        /// Returns the steps from an image to the model's input.
        processor(&self) -> &ImageProcessor => &self.images.processor;
    }

    /// Returns the labels for each image, in the order of the images, the best first.
    ///
    /// # Errors
    /// [`Error::InvalidInput`](crate::Error::InvalidInput) if there is no label, or an image cannot be preprocessed;
    /// [`Error::Text`](crate::Error::Text) with the index of a label that has too many tokens.
    pub fn classify<L: AsRef<str>>(
        &self,
        images: &[Image],
        labels: &[L],
    ) -> Result<Vec<RankedLabels>> {
        let labels: Vec<&str> = labels.iter().map(AsRef::as_ref).collect();
        let sentences = self.template.sentences(&labels)?;
        if images.is_empty() {
            return Ok(Vec::new());
        }
        let mut texts = Vec::new();
        self.labels
            .outputs(self.towers.text(), &sentences, |output| {
                texts.push(of_length_one(&output)?);
                Ok(())
            })?;
        let texts = Tensor::cat(&texts, 0)?;
        let unit = |output| Ok(of_length_one(&output)?);
        let images = self.images.vectors(self.towers.vision(), images, unit)?;
        let shape = (images.len(), images[0].len());
        let images = Tensor::from_vec(images.concat(), shape, &Device::Cpu)?;
        let images = images.to_device(texts.device())?.to_dtype(texts.dtype())?;
        let logits = self.towers.similarities(&images, &texts)?;
        let ranked = |logits: &[f32]| {
            let scores = self.scoring.scores(logits)?;
            Ok(RankedLabels::first_of_equals(&labels, &scores))
        };
        let logits = host(&logits)?;
        logits.chunks_exact(labels.len()).map(ranked).collect()
    }
}
