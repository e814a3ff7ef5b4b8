//! The working memory of a tile of queries, one piece of thread-local scratch.

use bytemuck::cast_slice_mut;

use super::{AttentionKernel, Layout, Operand};

/// The memory, divided into its parts.
pub(crate) struct TileMemory<'a, F: Operand> {
    /// The packed queries, scaled: `[chunks of dimensions, rows, ROW_WORDS]`.
    pub(crate) queries: &'a mut [F::Word],
    /// `[panels of positions, rows, width]`.
    pub(crate) scores: &'a mut [f32],
    /// The packed exponentials of one chunk of positions, `[rows + 1, ROW_WORDS]`: one row more, since the
    /// first position need not be the chunk's first.
    pub(crate) exponentials: &'a mut [F::Word],
    /// Sums of exponentials times values, `[panels of dimensions, rows, width]`.
    pub(crate) totals: &'a mut [f32],
    /// The largest scores of each row, in lanes: `[rows, width]`.
    pub(crate) largest: &'a mut [f32],
    /// The sums of each row's exponentials, in lanes: `[rows, width]`.
    pub(crate) sums: &'a mut [f32],
    /// One panel of a chunk's values, copied where some must be replaced by zeros.
    pub(crate) values: &'a mut [F::Word],
}

impl<'a, F: Operand> TileMemory<'a, F> {
    /// Numbers of f32 that a tile of up to `n_rows` rows needs which see up to `span` positions.
    pub(crate) fn len(
        kernel: &dyn AttentionKernel<F>,
        layout: Layout,
        n_rows: usize,
        span: usize,
    ) -> usize {
        Self::lengths(kernel, layout, n_rows, span).iter().sum()
    }

    /// Divides `memory`, at least as long as [`Self::len`] says, for a tile of `n_rows` rows that see `span`
    /// positions.
    pub(crate) fn new(
        kernel: &dyn AttentionKernel<F>,
        layout: Layout,
        n_rows: usize,
        span: usize,
        memory: &'a mut [f32],
    ) -> Self {
        let mut rest = memory;
        let [queries, scores, exponentials, totals, largest, sums, values] =
            Self::lengths(kernel, layout, n_rows, span)
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

    /// The lengths of the parts, in the order of the fields.
    fn lengths(
        kernel: &dyn AttentionKernel<F>,
        layout: Layout,
        n_rows: usize,
        span: usize,
    ) -> [usize; 7] {
        let (width, head_dim) = (layout.width, layout.head_dim);
        [
            n_rows * head_dim.div_ceil(F::CHUNK) * kernel.row_words(),
            n_rows * span.next_multiple_of(width),
            (n_rows + 1) * kernel.row_words(),
            n_rows * layout.value_panels() * width,
            n_rows * width,
            n_rows * width,
            layout.value_panel_len(),
        ]
    }
}
