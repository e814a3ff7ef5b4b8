//! Labels of images.

use std::path::Path;

use candle_blocks_media::pictures::Image;

use super::runs::ImageReader;
use super::{ImageOptions, ImageProcessor};
use crate::error::{Error, Result, getters};
use crate::model::Model;
use crate::text::{ScoreFunction, Scores};

/// Scores a model's labels for images: transformers' image classification
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/pipelines/image_classification.py>).
///
/// ```no_run
/// use candle_blocks::pictures::{Image, ImageClassifier};
/// let classifier = ImageClassifier::open("vit-base-patch16-224")?;
/// let scores = &classifier.classify(&[Image::open("cat.jpg")?])?[0];
/// for i in scores.ranked().into_iter().take(5) {
///     println!("{} {}", classifier.labels()[i], scores.scores[i]);
/// }
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageClassifier {
    model: Model,
    reader: ImageReader,
    labels: Vec<String>,
    scoring: ScoreFunction,
}

impl ImageClassifier {
    /// Opens a checkpoint's folder, packed in f32 for inference on the CPU. [`ImageOptions`] has more options.
    ///
    /// # Errors
    /// The errors of [`ImageOptions::classifier`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        ImageOptions::default().classifier(directory)
    }

    pub(super) fn new(
        model: Model,
        reader: ImageReader,
        labels: Vec<String>,
        scoring: ScoreFunction,
    ) -> Self {
        Self {
            model,
            reader,
            labels,
            scoring,
        }
    }

    getters! {
        /// Returns the model.
        model(&self) -> &Model => &self.model;
        /// Returns the steps from an image to the model's input.
        processor(&self) -> &ImageProcessor => &self.reader.processor;
        /// Returns the labels' names.
        labels(&self) -> &[String] => &self.labels;
    }

    /// Returns the scores of the labels for each image, in the order of the images.
    ///
    /// # Errors
    /// If an image cannot be preprocessed, or the model refuses its size.
    pub fn classify(&self, images: &[Image]) -> Result<Vec<Scores>> {
        let missing = || Error::InvalidConfig("the model gives no logits".to_string());
        let logits = self.reader.vectors(&self.model, images, |output| {
            output.logits.ok_or_else(missing)
        })?;
        let of = |logits: Vec<f32>| {
            Ok(Scores {
                scores: self.scoring.scores(&logits)?,
                logits,
            })
        };
        logits.into_iter().map(of).collect()
    }
}
