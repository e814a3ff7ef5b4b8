//! Vectors of images.

use std::path::Path;

use candle_blocks_media::pictures::Image;
use candle_core::{Device, Tensor};

use super::runs::ImageReader;
use super::{ImageOptions, ImageProcessor};
use crate::config::{EmbeddingsConfig, HeadTask};
use crate::error::{Error, Result, getters};
use crate::model::{Model, ModelOutput};

/// Computes a vector for each image.
///
/// The vector is what transformers' `get_image_features` returns for a model of two towers (CLIP, SigLIP): the projection, not
/// scaled to length 1. Of other models it is `pooler_output` (transformers' image feature extraction with `pool=True`). A model
/// without a pooler gives the last hidden state of its class token, or without that token the mean over the patches.
///
/// ```no_run
/// use candle_blocks::pictures::{Image, ImageEmbedder};
/// let embedder = ImageEmbedder::open("dinov2-base")?;
/// let vectors = embedder.embed(&[Image::open("cat.jpg")?, Image::open("dog.jpg")?])?; // [2, 768]
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageEmbedder {
    model: Model,
    reader: ImageReader,
    has_class_token: bool,
}

impl ImageEmbedder {
    /// Opens a checkpoint's folder, packed in f32 for inference on the CPU. [`ImageOptions`] has more options.
    ///
    /// # Errors
    /// The errors of [`ImageOptions::embedder`].
    pub fn open(directory: impl AsRef<Path>) -> Result<Self> {
        ImageOptions::default().embedder(directory)
    }

    pub(super) fn new(model: Model, reader: ImageReader) -> Result<Self> {
        let EmbeddingsConfig::Patches(patches) = &model.config().embeddings else {
            let reason = "the model does not read images; use a vision model, or one of two towers";
            return Err(Error::InvalidConfig(reason.into()));
        };
        Ok(Self {
            has_class_token: patches.class_token,
            model,
            reader,
        })
    }

    getters! {
        /// Returns the model.
        model(&self) -> &Model => &self.model;
        /// Returns the steps from an image to the model's input.
        processor(&self) -> &ImageProcessor => &self.reader.processor;
    }

    /// Returns the vectors `[n, d]` of images, f32 on the CPU.
    ///
    /// # Errors
    /// If there is no image, one cannot be preprocessed, or the model refuses its size.
    pub fn embed(&self, images: &[Image]) -> Result<Tensor> {
        if images.is_empty() {
            return Err(Error::input("images", "missing, expected at least one"));
        }
        let select = |output| self.vector(output);
        let rows = self.reader.vectors(&self.model, images, select)?;
        let shape = (rows.len(), rows[0].len());
        Ok(Tensor::from_vec(rows.concat(), shape, &Device::Cpu)?)
    }

    fn vector(&self, output: ModelOutput) -> Result<Tensor> {
        let head = self.model.config().head.as_ref();
        let is_projected = head.is_some_and(|head| head.task == HeadTask::Projection);
        let projected = output.logits.filter(|_| is_projected);
        Ok(match projected.or(output.pooler_output) {
            Some(vector) => vector,
            None if self.has_class_token => output.last_hidden_state.narrow(1, 0, 1)?.squeeze(1)?,
            None => output.last_hidden_state.mean(1)?,
        })
    }
}
