//! Rotary embeddings with several coordinates: for patches in an image, and for tokens among images.

use serde::{Deserialize, Serialize};

use super::{RotaryConfig, RotaryScaling, size};
use crate::error::{Error, Result};

/// The coordinates for a rotary embedding's angles, in place of a token's position.
/// Set them in [`RotaryConfig::axes`](crate::RotaryConfig::axes).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RotaryAxes {
    /// A patch's row and column.
    Patches(PatchAxes),
    /// A token's time, row and column.
    Tokens(TokenAxes),
}

/// Three coordinates for each token: time, row and column (multimodal rotary positions, Wang et al. 2024,
/// <https://arxiv.org/abs/2409.12191>). Pair `i` is rotated by `position[axis(i)] · frequency[i]`. In a text the
/// three are equal, which gives a normal rotary embedding;
/// [`ForwardContext::with_position_ids`](crate::ForwardContext::with_position_ids) sets others.
///
/// transformers' `Qwen2VLRotaryEmbedding` and `Qwen3VLTextRotaryEmbedding`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen3_vl/modeling_qwen3_vl.py>
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenAxes {
    /// The number of pairs rotated by time, row and column (`mrope_section`).
    pub pairs: [usize; 3],
    /// The order of the pairs.
    pub order: AxesOrder,
}

/// The order of pairs in time, row and column. Set it in [`TokenAxes::order`](crate::config::TokenAxes::order).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AxesOrder {
    /// All time pairs first, then row pairs, then column pairs (Qwen2-VL).
    Sections,
    /// Interleaved, until the row and column pairs are used up. The remaining pairs are time pairs (Qwen3-VL).
    Interleaved,
}

impl TokenAxes {
    /// Returns the pairs for time, height and width, and their order in a head.
    #[must_use]
    pub fn new(pairs: [usize; 3], order: AxesOrder) -> Self {
        Self { pairs, order }
    }

    /// Returns the coordinate that rotates a pair.
    pub(crate) fn axis(&self, pair: usize) -> usize {
        let [time, down, _] = self.pairs;
        match self.order {
            AxesOrder::Sections if pair < time => 0,
            AxesOrder::Sections if pair < time + down => 1,
            AxesOrder::Sections => 2,
            AxesOrder::Interleaved if pair / 3 < self.pairs[pair % 3] => pair % 3,
            AxesOrder::Interleaved => 0,
        }
    }

    pub(super) fn validate(&self, rotary: &RotaryConfig) -> Result<()> {
        let n_pairs = rotary.dim / 2;
        let total = self.pairs.into_iter().try_fold(0, usize::checked_add);
        match self.order == AxesOrder::Sections && total != Some(n_pairs) {
            true => Err(Error::InvalidConfig(format!(
                "{:?} pairs of dimensions rotate by time, row and column; expected {n_pairs} in total",
                self.pairs
            ))),
            false => Ok(()),
        }
    }
}

/// Angles from a patch's row and column in an image: the first half of the pairs is rotated by `row · frequency`,
/// the second half by `column · frequency`, each with the frequencies for half the dimensions.
///
/// transformers' `DINOv3ViTRopePositionEmbedding` and `Qwen2VLVisionRotaryEmbedding`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/dinov3_vit/modeling_dinov3_vit.py>
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen2_vl/modeling_qwen2_vl.py>
///
/// Set it in [`RotaryAxes::Patches`](crate::config::RotaryAxes::Patches).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchAxes {
    /// The number of tokens before the patches, which are not rotated.
    pub n_front: usize,
    /// The patch counts, down and across, unless
    /// [`ForwardContext::with_patches`](crate::ForwardContext::with_patches) sets others.
    pub grid: [usize; 2],
    /// The scale of rows and columns.
    #[serde(default)]
    pub coordinates: PatchCoordinates,
    /// The window size in patches: patches in a square window are consecutive, and windows and the patches in each
    /// are in row order. 1 for all patches in row order. Windows at the lower and right edge are smaller if they do
    /// not fill the grid.
    #[serde(default = "super::one")]
    pub window: usize,
    /// Set if the original model shifts and scales the coordinates at random in training. This crate does not, so
    /// the block refuses to train.
    pub random_in_training: bool,
}

/// The coordinate of a patch's row or column. Set it in [`PatchAxes::coordinates`](crate::config::PatchAxes::coordinates).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PatchCoordinates {
    /// Row `i` out of `n` is `2π · (2(i + 1/2)/n - 1)`, its center between the image's edges at `-2π` and `2π`: an
    /// image of any size spans the same angles. Columns likewise (DINOv3).
    #[default]
    Centers,
    /// Counted from 0 (Qwen2-VL).
    Counted,
}

impl PatchAxes {
    /// Returns the axes of a grid of patches after `n_front` other positions: centers of patches, no windows.
    #[must_use]
    pub fn new(n_front: usize, grid: [usize; 2]) -> Self {
        Self {
            n_front,
            grid,
            coordinates: PatchCoordinates::default(),
            window: 1,
            random_in_training: false,
        }
    }

    /// Returns the row and column of each patch in a grid, in patch order.
    pub(crate) fn places(&self, [down, across]: [usize; 2]) -> Vec<[usize; 2]> {
        let window = self.window;
        let starts = |n: usize| (0..n).step_by(window);
        let in_one = |start: usize, n: usize| start..n.min(start.saturating_add(window));
        starts(down)
            .flat_map(|top| starts(across).map(move |left| (top, left)))
            .flat_map(|(top, left)| {
                in_one(top, down).flat_map(move |row| in_one(left, across).map(move |at| [row, at]))
            })
            .collect()
    }

    pub(super) fn validate(&self, rotary: &RotaryConfig) -> Result<()> {
        size("the number of patches down", self.grid[0])?;
        size("the number of patches across", self.grid[1])?;
        size("the size of a window", self.window)?;
        if rotary.scaling != RotaryScaling::None {
            return Err(Error::InvalidConfig(
                "the rotary angles of rows and columns have no scaling for longer contexts"
                    .to_string(),
            ));
        }
        if !rotary.dim.is_multiple_of(4) || rotary.frequency_dim.is_some() {
            return Err(Error::InvalidConfig(format!(
                "{} dimensions of each head rotate by row and column; expected a multiple of 4",
                rotary.dim
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// transformers 5.23's `get_vision_position_ids([[1, 2, 4]], 2)`, and a grid that windows do not fill.
    #[test]
    fn patches_follow_each_other_window_by_window() {
        let places = |window, grid| {
            let axes = PatchAxes {
                n_front: 0,
                grid,
                coordinates: PatchCoordinates::Counted,
                window,
                random_in_training: false,
            };
            axes.places(grid)
        };
        let expected = [
            [0, 0],
            [0, 1],
            [1, 0],
            [1, 1],
            [0, 2],
            [0, 3],
            [1, 2],
            [1, 3],
        ];
        assert_eq!(places(2, [2, 4]), expected);
        assert_eq!(
            places(1, [2, 3]),
            [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
        );
        assert_eq!(places(2, [1, 3]), [[0, 0], [0, 1], [0, 2]]);
        assert_eq!(places(2, [3, 1]), [[0, 0], [1, 0], [2, 0]]);
    }

    #[track_caller]
    fn assert_axes(order: AxesOrder, pairs: [usize; 3], expected: &[usize]) {
        let axes = TokenAxes { pairs, order };
        let found: Vec<usize> = (0..expected.len()).map(|pair| axes.axis(pair)).collect();
        assert_eq!(found, expected);
    }

    /// transformers 5.23's `recomposition_frequencies` for `[[0, ..], [1, ..], [2, ..]]`, in Qwen2-VL and in
    /// Qwen3-VL.
    #[test]
    fn pairs_rotate_by_the_positions_that_transformers_gives_them() {
        assert_axes(AxesOrder::Sections, [3, 2, 1], &[0, 0, 0, 1, 1, 2]);
        assert_axes(AxesOrder::Interleaved, [3, 2, 1], &[0, 1, 2, 0, 1, 0]);
        let expected = [0, 1, 2, 0, 0, 2, 0, 0, 2, 0];
        assert_axes(AxesOrder::Interleaved, [6, 1, 3], &expected);
    }
}
