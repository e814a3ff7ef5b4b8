//! A text tower and a vision tower, and the comparison of their outputs.

use candle_core::{D, Result, Tensor};

use super::{Model, ModelInput, ModelOutput};
use crate::Error;
use crate::error::getters;
use crate::layers::{DropoutSource, Similarity};

/// A text tower and a vision tower (CLIP, SigLIP), made by [`Loader::two_towers`](crate::Loader::two_towers).
#[derive(Clone, Debug)]
pub struct TwoTowers {
    pub(super) text: Model,
    pub(super) vision: Model,
    pub(super) similarity: Similarity,
}

/// The outputs of a text tower and a vision tower. [`TwoTowers::forward`](crate::model::TwoTowers::forward) returns them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TwoTowersOutput {
    /// The text tower's output.
    pub text: ModelOutput,
    /// The vision tower's output.
    pub vision: ModelOutput,
    /// Unit vectors of the texts, `[texts, d]`.
    pub text_embeds: Tensor,
    /// Unit vectors of the images, `[images, d]`.
    pub image_embeds: Tensor,
    /// The scaled cosine similarity between each image and each text, `[images, texts]`.
    pub logits_per_image: Tensor,
}

impl TwoTowers {
    getters! {
        /// The text tower, as a separate model.
        text(&self) -> &Model => &self.text;
        /// The vision tower, as a separate model.
        vision(&self) -> &Model => &self.vision;
    }

    /// Makes all dropouts draw their masks from `source`.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        self.text.set_dropout_source(source);
        self.vision.set_dropout_source(source);
    }

    /// Runs both towers and compares each image with each text. There may be more texts than images, or fewer.
    ///
    /// # Errors
    /// Same as [`Model::forward`]. Also if the towers' vectors have different widths.
    pub fn forward(&self, input: &ModelInput) -> Result<TwoTowersOutput> {
        let images = self.vision_input(input);
        self.compared(self.text.forward(input)?, self.vision.forward(&images)?)
    }

    /// Returns the vision tower's part of an input.
    pub(crate) fn vision_input(&self, input: &ModelInput) -> ModelInput {
        ModelInput {
            pixel_values: input.pixel_values.clone(),
            train: input.train,
            ..ModelInput::default()
        }
    }

    pub(crate) fn compared(
        &self,
        text: ModelOutput,
        vision: ModelOutput,
    ) -> Result<TwoTowersOutput> {
        let (text_embeds, image_embeds) = (of_length_one(&text)?, of_length_one(&vision)?);
        Ok(TwoTowersOutput {
            logits_per_image: self.similarities(&image_embeds, &text_embeds)?,
            text,
            vision,
            text_embeds,
            image_embeds,
        })
    }

    /// Returns the scaled cosine similarity between unit vectors of images `[images, d]` and texts `[texts, d]`,
    /// `[images, texts]`.
    pub(crate) fn similarities(&self, images: &Tensor, texts: &Tensor) -> Result<Tensor> {
        if texts.dims()[1..] != images.dims()[1..] {
            let reason = format!(
                "text vectors have shape {:?}, image vectors {:?}",
                &texts.dims()[1..],
                &images.dims()[1..]
            );
            return Err(Error::InvalidConfig(reason).into());
        }
        self.similarity.forward(images, texts)
    }
}

/// Returns the head's output, or else the pooler's, scaled to unit length.
pub(crate) fn of_length_one(output: &ModelOutput) -> Result<Tensor> {
    let vector = output.logits.as_ref().or(output.pooler_output.as_ref());
    let none =
        || Error::InvalidConfig("a tower without a pooler or head has no vector".to_string());
    let vector = vector.ok_or_else(none)?;
    vector.broadcast_div(&vector.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?)
}
