//! The last step for a tile: division of totals by sums.

use super::{QueryRows, TilePlan, exponentiate::fold};
use crate::products::WIDTH;
use crate::vectors::{MAX_LANES, Real, Task, Vectors};

/// Divides the totals by the exponentials' sums, and writes the results.
pub(crate) struct DivideTotals<'a> {
    pub(crate) of: &'a QueryRows<'a>,
    pub(crate) plan: &'a TilePlan,
    pub(crate) totals: &'a [f32],
    pub(crate) sums: &'a [f32],
    /// `[rows, width]`. Each row's first element is its largest score.
    pub(crate) largest: &'a [f32],
}

impl<V: Vectors<f32>> Task<V> for DivideTotals<'_> {
    #[inline(always)]
    fn compute(self, v: V) {
        let width = WIDTH * V::LANES;
        let n_rows = self.plan.rows().len();
        let sinks = self.of.group.scoring.sinks;
        for (i, &row) in self.plan.rows().iter().enumerate() {
            let mut sum = fold(v, &self.sums[i * width..(i + 1) * width], |a, b| a + b);
            if let Some(sinks) = sinks {
                // Last, so that the bits do not depend on key positions.
                sum += Real::exp(sinks[row.head] - self.largest[i * width]);
            }
            self.of
                .write_normalizer(row, [self.largest[i * width], sum]);
            // A row that sees no key has a sum of 0, and totals of 0.
            let factor = v.splat(if sum == 0.0 { 0.0 } else { 1.0 / sum });
            let out = self.of.out(row).chunks_mut(V::LANES).enumerate();
            for (j, out) in out {
                let (panel, j) = (j / WIDTH, j % WIDTH);
                let totals =
                    &self.totals[(panel * n_rows + i) * width..][j * V::LANES..][..V::LANES];
                // SAFETY: `totals` holds LANES elements.
                let totals = unsafe { v.load(totals.as_ptr()) };
                let result = v.multiply_add(totals, factor, v.splat(0.0));
                if out.len() == V::LANES {
                    // SAFETY: `out` holds LANES elements.
                    unsafe { v.store(result, out.as_mut_ptr()) };
                } else {
                    let mut lanes = [0.0; MAX_LANES];
                    // SAFETY: `lanes` holds MAX_LANES elements, as many as the longest vector.
                    unsafe { v.store(result, lanes.as_mut_ptr()) };
                    out.copy_from_slice(&lanes[..out.len()]);
                }
            }
        }
    }
}
