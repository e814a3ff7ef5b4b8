//! The working memory of a tile of queries.

use bytemuck::cast_slice_mut;

use super::{
    arithmetic::{Operand, OperandDots},
    chunk::Layout,
};

/// Cut into its parts.
pub(super) struct TileMemory<'a, F: Operand> {
    /// `[chunks of dimensions, rows]` of the left operand.
    pub(super) queries: &'a mut [F::Word],
    /// `[panels of positions, rows, width]`.
    pub(super) scores: &'a mut [f32],
    /// Rows of the left operand, of one chunk of positions; and a row more, since they may begin within theirs.
    pub(super) exponentials: &'a mut [F::Word],
    /// `[panels of dimensions, rows, width]`.
    pub(super) totals: &'a mut [f32],
    /// The largest scores of each row, `[rows, width]`.
    pub(super) largest: &'a mut [f32],
    /// The sums of the exponentials, `[rows, width]`.
    pub(super) sums: &'a mut [f32],
    /// A panel of a chunk's values.
    pub(super) values: &'a mut [F::Word],
}

impl<'a, F: Operand> TileMemory<'a, F> {
    /// Numbers that tiles of up to so many rows need, which see up to so many positions.
    pub(super) fn len<D: OperandDots<F>>(layout: Layout, n_rows: usize, span: usize) -> usize {
        Self::lengths::<D>(layout, n_rows, span).iter().sum()
    }

    /// For a tile of so many rows that see so many positions, of at least as much memory as [`Self::len`] says.
    pub(super) fn new<D: OperandDots<F>>(
        layout: Layout,
        n_rows: usize,
        span: usize,
        memory: &'a mut [f32],
    ) -> Self {
        let mut rest = memory;
        let [queries, scores, exponentials, totals, largest, sums, values] =
            Self::lengths::<D>(layout, n_rows, span)
                .map(|length| rest.split_off_mut(..length).expect("len has seen to it"));
        // Words are as large as numbers.
        Self {
            queries: cast_slice_mut(queries),
            scores,
            exponentials: cast_slice_mut(exponentials),
            totals,
            largest,
            sums,
            values: cast_slice_mut(values),
        }
    }

    /// Of the parts, in their order.
    fn lengths<D: OperandDots<F>>(layout: Layout, n_rows: usize, span: usize) -> [usize; 7] {
        let Layout {
            width, head_dim, ..
        } = layout;
        [
            n_rows * head_dim.div_ceil(F::CHUNK) * D::ROW_WORDS,
            n_rows * span.next_multiple_of(width),
            (n_rows + 1) * D::ROW_WORDS,
            n_rows * layout.value_panels() * width,
            n_rows * width,
            n_rows * width,
            layout.value_panel_len(),
        ]
    }
}
