//! The configuration of patch embeddings for images.

use serde::{Deserialize, Serialize};

use super::{NormConfig, probability, size};
use crate::error::{Error, Result};

/// Patch embeddings: a linear map over each patch, special tokens before the patches, and positions.
/// Set them in [`EmbeddingsConfig::Patches`](crate::config::EmbeddingsConfig::Patches).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct PatchEmbeddingsConfig {
    /// The number of channels in the image.
    pub n_channels: usize,
    /// Height and width of the images in training, or their smallest size.
    pub image_size: [usize; 2],
    /// Height and width of a patch.
    pub patch_size: [usize; 2],
    /// The number of video frames in a patch with a time dimension (Qwen2-VL). An image is repeated for all frames.
    #[serde(default)]
    pub frames: Option<usize>,
    /// The window size in patches: patches in a square window are consecutive, and windows and the patches in each
    /// are in row order (Qwen2-VL). 1 for all patches in row order.
    #[serde(default = "super::one")]
    pub window: usize,
    /// The blocks' width.
    pub d_model: usize,
    /// The linear map has a bias.
    pub bias: bool,
    /// Adds a class token before the patches.
    pub class_token: bool,
    /// Adds a distillation token after the class token (DeiT).
    pub distillation_token: bool,
    /// The number of register tokens, which have no positions, after the other special tokens (DINOv2).
    pub n_registers: usize,
    /// Adds a position table. Without it, the blocks apply a rotary embedding (DINOv3).
    pub positions: bool,
    /// The interpolation of positions for other image sizes.
    pub resizing: Resizing,
    /// The order of a patch's pixels in the linear map.
    #[serde(default)]
    pub pixels: PixelOrder,
    /// The norm over the sum (CLIP).
    pub norm: Option<NormConfig>,
    /// The dropout probability for the sum.
    pub dropout: f64,
}

/// The interpolation of positions for other image sizes: PyTorch's `interpolate(align_corners=False)`.
/// Set it in [`PatchEmbeddingsConfig::resizing`](crate::config::PatchEmbeddingsConfig::resizing).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Resizing {
    /// `mode="bicubic"`.
    Cubic,
    /// `mode="bicubic", antialias=True`: smoothed when downsampling (DINOv2 with registers).
    SmoothCubic,
    /// `mode="bilinear", antialias=True` (SigLIP 2).
    SmoothLinear,
}

/// The order of a patch's pixels in the linear map.
/// Set it in [`PatchEmbeddingsConfig::pixels`](crate::config::PatchEmbeddingsConfig::pixels).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PixelOrder {
    /// Channel by channel, a convolution's weight `[d_model, n_channels, height, width]`.
    #[default]
    ChannelByChannel,
    /// Pixel by pixel, `[d_model, height * width * n_channels]` (SigLIP 2).
    PixelByPixel,
}

impl PatchEmbeddingsConfig {
    /// Returns patch embeddings for a square image with three channels, with a bias and a class token.
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

    /// Returns the patch counts, down and across, for the images in training.
    pub fn grid(&self) -> [usize; 2] {
        [0, 1].map(|i| self.image_size[i] / self.patch_size[i].max(1))
    }

    /// Returns the number of tokens with positions before the patches.
    pub(crate) fn n_special(&self) -> usize {
        usize::from(self.class_token) + usize::from(self.distillation_token)
    }

    /// Returns the number of tokens before the patches.
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
