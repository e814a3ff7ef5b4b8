//! A query tile's working memory, in one thread-local scratch buffer.

use bytemuck::cast_slice_mut;

use super::{AttentionKernel, Layout, Operand};

/// The working memory, divided into fields.
pub(crate) struct TileMemory<'a, F: Operand> {
    /// Packed and scaled queries: `[chunks of dimensions, rows, ROW_WORDS]`.
    pub(crate) queries: &'a mut [F::Word],
    /// `[panels of positions, rows, width]`.
    pub(crate) scores: &'a mut [f32],
    /// A chunk's packed exponentials, `[rows + 1, ROW_WORDS]`. One row more, because the first position may not be
    /// the chunk's first.
    pub(crate) exponentials: &'a mut [F::Word],
    /// Sums of exponentials times values, `[panels of dimensions, rows, width]`.
    pub(crate) totals: &'a mut [f32],
    /// Each row's largest scores, one per lane: `[rows, width]`.
    pub(crate) largest: &'a mut [f32],
    /// Each row's summed exponentials, one per lane: `[rows, width]`.
    pub(crate) sums: &'a mut [f32],
    /// A value panel in a chunk, copied if some values must be replaced by zeros.
    pub(crate) values: &'a mut [F::Word],
}

impl<'a, F: Operand> TileMemory<'a, F> {
    /// Returns how many f32 elements a tile needs with up to `n_rows` rows and `span` visible positions.
    pub(crate) fn len(
        kernel: &dyn AttentionKernel<F>,
        layout: Layout,
        n_rows: usize,
        span: usize,
    ) -> usize {
        Self::lengths(kernel, layout, n_rows, span).iter().sum()
    }

    /// Divides `memory`, whose length is at least [`Self::len`], for a tile with `n_rows` rows and `span` visible
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
            Self::lengths(kernel, layout, n_rows, span).map(|length| {
                rest.split_off_mut(..length)
                    .expect("memory is at least as long as Self::len")
            });
        // Words are as large as f32.
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

    /// Returns the fields' lengths, in field order.
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
