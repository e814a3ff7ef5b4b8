//! Rotary embeddings of an image's patches, whose angles come from two coordinates.

use serde::{Deserialize, Serialize};

use super::{RotaryConfig, RotaryScaling, size};
use crate::error::{Error, Result};

/// What the angles of a rotary embedding are multiples of, where it is not the position of a token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RotaryAxes {
    /// The row and the column of a patch.
    Patches(PatchAxes),
}

/// The row and the column of an image's patch as angles: the first half of the pairs turn by `row · frequency`, the second by
/// `column · frequency`, each with the frequencies of half as many dimensions. Row `i` of `n` is `2π · (2(i + 1/2)/n - 1)`, its
/// center between the image's edges at `-2π` and `2π`, so that an image of any size spans the same angles; columns likewise.
///
/// transformers' `DINOv3ViTRopePositionEmbedding`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/dinov3_vit/modeling_dinov3_vit.py>
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchAxes {
    /// Tokens in front of the patches, which do not turn.
    pub n_front: usize,
    /// Patches down and across, where [`ForwardContext::with_patches`](crate::ForwardContext::with_patches) does not say
    /// others.
    pub grid: [usize; 2],
    /// Whether the model it stands for moves and scales the coordinates at random in training, which this crate does not: such
    /// a block refuses to train.
    pub random_in_training: bool,
}

impl PatchAxes {
    pub(super) fn validate(&self, rotary: &RotaryConfig) -> Result<()> {
        size("the number of patches down", self.grid[0])?;
        size("the number of patches across", self.grid[1])?;
        if rotary.scaling != RotaryScaling::None {
            return Err(Error::InvalidConfig(
                "the rotary angles of rows and columns have no scaling for longer contexts"
                    .to_string(),
            ));
        }
        if !rotary.dim.is_multiple_of(4) || rotary.frequency_dim.is_some() {
            return Err(Error::InvalidConfig(format!(
                "{} dimensions of each head turn by row and column; expected a multiple of 4",
                rotary.dim
            )));
        }
        Ok(())
    }
}
