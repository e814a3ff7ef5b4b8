//! A text tower and a vision tower whose outputs are compared.

use candle_core::{D, Result, Tensor};

use super::{Model, ModelInput, ModelOutput};
use crate::Error;
use crate::config::getters;
use crate::layers::{DropoutSource, Similarity};

/// A text tower and a vision tower (CLIP, SigLIP), made by [`Checkpoint::two_towers`](crate::Checkpoint::two_towers).
#[derive(Clone, Debug)]
pub struct TwoTowers {
    pub(super) text: Model,
    pub(super) vision: Model,
    pub(super) similarity: Similarity,
}

/// What both towers give for texts and images.
#[derive(Clone, Debug)]
pub struct TwoTowersOutput {
    /// What the text tower gives.
    pub text: ModelOutput,
    /// What the vision tower gives.
    pub vision: ModelOutput,
    /// Vectors of the texts, `[texts, d]`, of length one.
    pub text_embeds: Tensor,
    /// Vectors of the images, `[images, d]`, of length one.
    pub image_embeds: Tensor,
    /// How alike each image and text are, `[images, texts]`.
    pub logits_per_image: Tensor,
}

impl TwoTowers {
    getters! {
        /// The text tower, as a model of its own.
        text(&self) -> &Model => &self.text;
        /// The vision tower, as a model of its own.
        vision(&self) -> &Model => &self.vision;
    }

    /// Makes all dropouts draw their masks from `source`.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        self.text.set_dropout_source(source);
        self.vision.set_dropout_source(source);
    }

    /// Runs both towers, on texts and images of any two numbers, and compares each with each.
    ///
    /// # Errors
    /// As for [`Model::forward`]; also if the towers give vectors of different widths.
    pub fn forward(&self, input: &ModelInput) -> Result<TwoTowersOutput> {
        let images = self.vision_input(input);
        self.compared(self.text.forward(input)?, self.vision.forward(&images)?)
    }

    /// The vision tower's part of an input.
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
        let (texts, images) = (text_embeds.dims(), image_embeds.dims());
        if texts[1..] != images[1..] {
            let reason = format!(
                "texts become vectors of {:?}, images of {:?}",
                &texts[1..],
                &images[1..]
            );
            return Err(Error::InvalidConfig(reason).into());
        }
        Ok(TwoTowersOutput {
            logits_per_image: self.similarity.forward(&image_embeds, &text_embeds)?,
            text,
            vision,
            text_embeds,
            image_embeds,
        })
    }
}

/// What the head made, or else the pooler, scaled to length one.
fn of_length_one(output: &ModelOutput) -> Result<Tensor> {
    let vector = output.logits.as_ref().or(output.pooler_output.as_ref());
    let none = || Error::InvalidConfig("a tower without pooler gives no vector".to_string());
    let vector = vector.ok_or_else(none)?;
    vector.broadcast_div(&vector.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?)
}
