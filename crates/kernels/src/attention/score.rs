//! Converts products to scores: soft cap, biases and masks for one chunk, and the rows' maxima.

use std::ops::Range;

use super::exp::{larger, zip};
use super::{Bias, Group, TilePlan};
use crate::products::{Total, WIDTH};
use crate::vectors::{Separate, Task, Vectors, math};

/// Converts one chunk's products to scores, with `-inf` for hidden keys, and updates each row's maximum.
pub(crate) struct Score<'a> {
    pub(crate) group: &'a Group<'a>,
    pub(crate) plan: &'a TilePlan,
    /// The first product's position, which starts a panel.
    pub(crate) first: usize,
    /// The chunk's products on input, its scores on output: `[panels, rows, width]`.
    pub(crate) scores: &'a mut [f32],
    /// Each row's running maxima, which ignore NaN, `[rows, width]`: one per lane.
    pub(crate) largest: &'a mut [f32],
    /// Tells whether `largest` already covers earlier chunks.
    pub(crate) total: Total,
}

impl<V: Vectors<f32>> Task<V> for Score<'_> {
    #[inline(always)]
    fn compute(mut self, v: V) {
        let width = WIDTH * V::LANES;
        let n_rows = self.plan.rows().len();
        let positions = self.first..self.first + self.scores.len() / n_rows;
        if !(self.is_plain() && self.plan.all_see(&positions)) {
            // All rows first, then the maxima: loading values that were just stored in narrower pieces would stall
            // (no store forwarding).
            for row in 0..n_rows {
                self.adjust::<V>(row);
            }
        }
        for (row, lanes) in self.largest.chunks_exact_mut(width).enumerate() {
            for (j, lanes) in lanes.chunks_exact_mut(V::LANES).enumerate() {
                let mut largest = match self.total {
                    Total::New => v.splat(f32::NEG_INFINITY),
                    // SAFETY: `lanes` holds LANES elements.
                    Total::Running => unsafe { v.load(lanes.as_ptr()) },
                };
                for scores in self.scores.chunks_exact(n_rows * width) {
                    let scores = &scores[row * width + j * V::LANES..][..V::LANES];
                    // SAFETY: `scores` holds LANES elements.
                    let scores = unsafe { v.load(scores.as_ptr()) };
                    largest = zip(v, largest, scores, larger);
                }
                // SAFETY: `lanes` holds LANES elements.
                unsafe { v.store(largest, lanes.as_mut_ptr()) };
            }
        }
    }
}

impl Score<'_> {
    /// Returns whether visible scores are the unchanged products: no cap, no bias, no key mask.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        let scoring = self.group.scoring;
        scoring.soft_cap.is_none()
            && scoring.relative.is_none()
            && scoring.biases.is_empty()
            && self.group.key_mask.mask.is_none()
    }

    /// Caps a row's products, adds the biases, and hides masked keys.
    #[inline(always)]
    fn adjust<V: Vectors<f32>>(&mut self, row: usize) {
        let width = WIDTH * V::LANES;
        let n_rows = self.plan.rows().len();
        let n_panels = self.scores.len() / (n_rows * width);
        let (seen, row_of) = (&self.plan.seen()[row], self.plan.rows()[row]);
        let scoring = self.group.scoring;
        let mask = self.group.key_mask.mask;
        let origin = scoring.origin(self.group.sequence);
        let is_plain = self.is_plain();
        for panel in 0..n_panels {
            let start = self.first + panel * width;
            let clamp = |position: usize| position.clamp(start, start + width);
            let inside = clamp(seen.start)..clamp(seen.end);
            if is_plain && inside.len() == width {
                continue;
            }
            let scores = &mut self.scores[(panel * n_rows + row) * width..][..width];
            let shown = inside.start - start..inside.end.max(inside.start) - start;
            if shown.len() < width {
                hide(scores, shown.start as u32..shown.end as u32);
            }
            if is_plain || shown.is_empty() {
                continue;
            }
            let scores = &mut scores[shown];
            if let Some(cap) = scoring.soft_cap {
                for score in &mut *scores {
                    *score = math::tanh::<Separate>(*score / cap) * cap;
                }
            }
            if let Some(relative) = &self.group.relative {
                relative.add_to(row_of.query, inside.start, scores);
            }
            for bias in scoring.biases {
                let (query, key) = (origin.query + row_of.query, origin.key + inside.start);
                let at = [self.group.sequence, row_of.head, query, key];
                add(scores, bias, at);
            }
            if let Some(mask) = mask {
                for (score, &mark) in scores.iter_mut().zip(&mask[inside]) {
                    *score = if mark == 0 { f32::NEG_INFINITY } else { *score };
                }
            }
        }
    }
}

/// Adds a bias to consecutive scores. `at` is the first one's sequence, head, query and key.
#[inline(always)]
fn add(scores: &mut [f32], bias: &Bias, at: [usize; 4]) {
    let from = bias.from(at);
    match bias.layout.key_stride() {
        0 => scores.iter_mut().for_each(|score| *score += from[0]),
        1 => {
            for (score, bias) in scores.iter_mut().zip(from) {
                *score += bias;
            }
        }
        stride => {
            for (score, bias) in scores.iter_mut().zip(from.iter().step_by(stride)) {
                *score += bias;
            }
        }
    }
}

/// Sets a panel's scores outside the range `shown` to `-inf`, which gives a weight of 0.
#[inline(always)]
fn hide(scores: &mut [f32], shown: Range<u32>) {
    // Without branches, so that the loop vectorizes.
    for (at, score) in (0u32..).zip(scores) {
        let is_seen = (at >= shown.start) & (at < shown.end);
        *score = if is_seen { *score } else { f32::NEG_INFINITY };
    }
}
