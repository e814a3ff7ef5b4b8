//! Softmax for a tile's rows, one chunk of positions at a time, without the final division.

use super::exp::{exp, larger, map, zip};
use super::{Operand, OperandDots};
use crate::products::{Total, WIDTH};
use crate::vectors::{MAX_LANES, Task, Vectors};

/// Computes `exp(score - largest)` for one chunk, packs it as the left operand, and adds it to the sums.
pub(crate) struct Exponentiate<'a, F: Operand> {
    /// The chunk's scores, `[panels, rows, width]`.
    pub(crate) scores: &'a [f32],
    /// Each row's maxima over all chunks, `[rows, width]`. The first call reduces each row's maxima to its first
    /// element.
    pub(crate) largest: &'a mut [f32],
    /// The packed left operand's rows, starting at the first of these positions.
    pub(crate) exponentials: &'a mut [F::Word],
    /// Running sums, `[rows, width]`.
    pub(crate) sums: &'a mut [f32],
    /// Tells whether `sums` already holds earlier chunks' sums. The first chunk also reduces `largest`.
    pub(crate) total: Total,
}

impl<F: Operand, D: OperandDots<F>> Task<D> for Exponentiate<'_, F> {
    #[inline(always)]
    fn compute(self, d: D) {
        let v = d.vectors();
        let (width, n_lanes) = (D::PANEL, D::PANEL / WIDTH);
        let n_rows = self.sums.len() / width;
        let n_panels = self.scores.len() / (n_rows * width);
        let rows = self.sums.chunks_exact_mut(width);
        let rows = rows.zip(self.largest.chunks_exact_mut(width)).enumerate();
        for (row, (lanes, largest)) in rows {
            if self.total == Total::New {
                let all = fold(v, largest, larger);
                // -inf - -inf is NaN. Subtracting 0 instead preserves exp(-inf) = 0, and NaN if a visible score is
                // NaN.
                largest[0] = if all == f32::NEG_INFINITY { 0.0 } else { all };
            }
            let largest = largest[0];
            let mut sums = [v.splat(0.0); WIDTH];
            if self.total == Total::Running {
                for (j, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: `lanes` holds WIDTH * LANES elements.
                    *sum = unsafe { v.load(lanes.as_ptr().add(j * n_lanes)) };
                }
            }
            let exponentials = &mut self.exponentials[row * D::ROW_WORDS..];
            let exponentials = exponentials.chunks_exact_mut(D::LEFT_WORDS);
            for (panel, exponentials) in (0..n_panels).zip(exponentials) {
                let scores = &self.scores[(panel * n_rows + row) * width..][..width];
                let mut e = [v.splat(0.0); WIDTH];
                for (j, (e, sum)) in e.iter_mut().zip(&mut sums).enumerate() {
                    // SAFETY: `scores` holds WIDTH * LANES elements.
                    let scores = unsafe { v.load(scores.as_ptr().add(j * n_lanes)) };
                    *e = exp(v, map(v, scores, |score| score - largest));
                    *sum = v.add(*sum, *e);
                }
                // SAFETY: `exponentials` holds LEFT_WORDS words.
                unsafe { d.pack_left(e, exponentials.as_mut_ptr()) };
            }
            for (j, sum) in sums.iter().enumerate() {
                // SAFETY: `lanes` holds WIDTH * LANES elements.
                unsafe { v.store(*sum, lanes.as_mut_ptr().add(j * n_lanes)) };
            }
        }
    }
}

/// Reduces `WIDTH · LANES` values to one, by merging the upper half with the lower until one remains.
#[inline(always)]
pub(crate) fn fold<V: Vectors<f32>>(v: V, x: &[f32], merge: impl Fn(f32, f32) -> f32) -> f32 {
    assert_eq!(x.len(), WIDTH * V::LANES);
    // SAFETY: `x` holds two vectors, by the assertion above.
    let (low, high) = unsafe { (v.load(x.as_ptr()), v.load(x.as_ptr().add(V::LANES))) };
    let mut lanes = [0.0; MAX_LANES];
    // SAFETY: no vector has more than MAX_LANES lanes.
    unsafe { v.store(zip(v, low, high, &merge), lanes.as_mut_ptr()) };
    let mut half = V::LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = merge(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}
