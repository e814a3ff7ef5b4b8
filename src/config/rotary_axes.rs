//! Rotary embeddings whose angles come from several coordinates: of an image's patches, and of tokens among images.

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
    /// The time, the row and the column of a token.
    Tokens(TokenAxes),
}

/// Positions of three numbers for each token, time, row and column (multimodal rotary positions, Wang et al. 2024,
/// <https://arxiv.org/abs/2409.12191>): pair `i` turns by `position[axis(i)] · frequency[i]`. The three are equal in a text, whose
/// tokens then turn as by any rotary embedding; [`ForwardContext::with_position_ids`](crate::ForwardContext::with_position_ids)
/// takes others.
///
/// transformers' `Qwen2VLRotaryEmbedding` and `Qwen3VLTextRotaryEmbedding`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen3_vl/modeling_qwen3_vl.py>
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenAxes {
    /// How many pairs turn by time, row and column (`mrope_section`).
    pub pairs: [usize; 3],
    /// Which these are.
    pub order: AxesOrder,
}

/// Which pairs of dimensions turn by which number of a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AxesOrder {
    /// Those by time, then those by row, then those by column (Qwen2-VL).
    Sections,
    /// By turns, until there are as many by row and by column as said; all others by time (Qwen3-VL).
    Interleaved,
}

impl TokenAxes {
    /// Which number of a position this pair turns by.
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
                "{:?} pairs of dimensions turn by time, row and column; expected {n_pairs} in all, as many as turn",
                self.pairs
            ))),
            false => Ok(()),
        }
    }
}

/// The row and the column of an image's patch as angles: the first half of the pairs turn by `row · frequency`, the second by
/// `column · frequency`, each with the frequencies of half as many dimensions.
///
/// transformers' `DINOv3ViTRopePositionEmbedding` and `Qwen2VLVisionRotaryEmbedding`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/dinov3_vit/modeling_dinov3_vit.py>
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/qwen2_vl/modeling_qwen2_vl.py>
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PatchAxes {
    /// Tokens in front of the patches, which do not turn.
    pub n_front: usize,
    /// Patches down and across, where [`ForwardContext::with_patches`](crate::ForwardContext::with_patches) does not say
    /// others.
    pub grid: [usize; 2],
    /// What a row and a column are as numbers.
    #[serde(default)]
    pub coordinates: PatchCoordinates,
    /// The patches of a square window of so many down and across follow each other, window by window, both in rows; 1 for
    /// patches in rows. At the lower and right edge windows are smaller where they do not fill the grid.
    #[serde(default = "one")]
    pub window: usize,
    /// Whether the model it stands for moves and scales the coordinates at random in training, which this crate does not: such
    /// a block refuses to train.
    pub random_in_training: bool,
}

/// What the row and the column of a patch are as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PatchCoordinates {
    /// Row `i` of `n` is `2π · (2(i + 1/2)/n - 1)`, its center between the image's edges at `-2π` and `2π`, so that an image of
    /// any size spans the same angles; columns likewise (DINOv3).
    #[default]
    Centers,
    /// Counted from 0 (Qwen2-VL).
    Counted,
}

fn one() -> usize {
    1
}

impl PatchAxes {
    /// Rows and columns of the patches of a grid, in their order.
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
                "{} dimensions of each head turn by row and column; expected a multiple of 4",
                rotary.dim
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// transformers 5.23's `get_vision_position_ids([[1, 2, 4]], 2)`; and a grid that windows do not fill, in smaller ones.
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

    /// transformers 5.23's `recomposition_frequencies` of `[[0, ..], [1, ..], [2, ..]]`, in Qwen2-VL and in Qwen3-VL.
    #[test]
    fn pairs_turn_by_the_numbers_that_transformers_gives_them() {
        assert_axes(AxesOrder::Sections, [3, 2, 1], &[0, 0, 0, 1, 1, 2]);
        assert_axes(AxesOrder::Interleaved, [3, 2, 1], &[0, 1, 2, 0, 1, 0]);
        let expected = [0, 1, 2, 0, 0, 2, 0, 0, 2, 0];
        assert_axes(AxesOrder::Interleaved, [6, 1, 3], &expected);
    }
}
