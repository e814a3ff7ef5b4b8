//! The configuration of the embeddings of an image's patches.

use serde::{Deserialize, Serialize};

use super::{NormConfig, probability, size};
use crate::error::{Error, Result};

/// The embeddings of an image: a linear map of each patch, special tokens in front, and positions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct PatchEmbeddingsConfig {
    /// Channels of the image.
    pub n_channels: usize,
    /// Height and width of the images that it was trained with; where these were of any size, those of the smallest.
    pub image_size: [usize; 2],
    /// Height and width of a patch.
    pub patch_size: [usize; 2],
    /// How many frames of a video a patch spans, if it has a dimension of time (Qwen2-VL); an image is all of them.
    #[serde(default)]
    pub frames: Option<usize>,
    /// The patches of a square window of so many down and across follow each other, window by window, both in rows (Qwen2-VL);
    /// 1 for patches in rows.
    #[serde(default = "one")]
    pub window: usize,
    /// Width of the blocks.
    pub d_model: usize,
    /// Whether the map of patches has a bias.
    pub bias: bool,
    /// Whether a token for the whole image stands in front.
    pub class_token: bool,
    /// Whether a second such token, for distillation, follows it (DeiT).
    pub distillation_token: bool,
    /// The number of further tokens behind those, which have no positions (DINOv2's registers).
    pub n_registers: usize,
    /// Whether there is a table of positions; without, the blocks turn queries and keys (DINOv3).
    pub positions: bool,
    /// How positions for an image of another size are interpolated.
    pub resizing: Resizing,
    /// The order of a patch's pixels in its map.
    #[serde(default)]
    pub pixels: PixelOrder,
    /// The norm of the sum (CLIP).
    pub norm: Option<NormConfig>,
    /// Dropout probability of the sum.
    pub dropout: f64,
}

/// How positions for an image of another size are interpolated: PyTorch's `interpolate(align_corners=False)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Resizing {
    /// `mode="bicubic"`.
    Cubic,
    /// `mode="bicubic", antialias=True`: smoothed where the image is smaller (DINOv2 with registers).
    SmoothCubic,
    /// `mode="bilinear", antialias=True` (SigLIP 2).
    SmoothLinear,
}

/// The order of a patch's pixels in its map.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PixelOrder {
    /// A convolution's weight, `[d_model, n_channels, height, width]`.
    #[default]
    ChannelByChannel,
    /// All channels of each pixel, `[d_model, height * width * n_channels]` (SigLIP 2).
    PixelByPixel,
}

impl PatchEmbeddingsConfig {
    /// Patches of a square image of three channels, with a bias and a token for the whole image.
    pub fn new(image_size: usize, patch_size: usize, d_model: usize) -> Self {
        Self {
            n_channels: 3,
            image_size: [image_size; 2],
            patch_size: [patch_size; 2],
            frames: None,
            window: 1,
            d_model,
            bias: true,
            class_token: true,
            distillation_token: false,
            n_registers: 0,
            positions: true,
            resizing: Resizing::Cubic,
            pixels: PixelOrder::ChannelByChannel,
            norm: None,
            dropout: 0.0,
        }
    }

    /// Patches of the images that it was trained with, down and across.
    pub fn grid(&self) -> [usize; 2] {
        [0, 1].map(|i| self.image_size[i] / self.patch_size[i].max(1))
    }

    /// Tokens with positions in front of the patches.
    pub(crate) fn n_special(&self) -> usize {
        usize::from(self.class_token) + usize::from(self.distillation_token)
    }

    /// Tokens in front of the patches.
    pub fn n_front(&self) -> usize {
        self.n_special() + self.n_registers
    }

    pub(super) fn validate(&self) -> Result<()> {
        size("the number of channels", self.n_channels)?;
        size("d_model", self.d_model)?;
        size("the number of frames", self.frames.unwrap_or(1))?;
        size("the size of a window", self.window)?;
        if self.frames.is_some() && self.pixels == PixelOrder::PixelByPixel {
            return Err(Error::InvalidConfig(
                "a patch of several frames has its pixels channel by channel; expected that order"
                    .to_string(),
            ));
        }
        for i in [0, 1] {
            size("the size of a patch", self.patch_size[i])?;
            size("the size of an image", self.image_size[i])?;
            if self.image_size[i] < self.patch_size[i] {
                return Err(Error::InvalidConfig(format!(
                    "images of {:?} are smaller than a patch of {:?}",
                    self.image_size, self.patch_size
                )));
            }
        }
        probability("the embeddings' dropout", self.dropout)?;
        self.norm.iter().try_for_each(NormConfig::validate)
    }
}

fn one() -> usize {
    1
}
