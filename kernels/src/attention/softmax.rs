//! The softmax of a tile's rows, one chunk of positions at a time, except for the final division.

use std::ops::Range;

use super::{
    exp::{exp, map, zip},
    mask::{Bias, Scoring},
    operand::{Operand, OperandDots},
    plan::{Group, Plan},
};
use crate::{
    products::tile::{Total, WIDTH},
    vectors::{
        level::{MAX_LANES, Task, Vectors},
        math::{self, Separate},
    },
};

/// Turns the products of one chunk into scores, `-inf` for keys that do not count, and updates each row's
/// maximum.
pub(crate) struct Score<'a> {
    pub(crate) group: &'a Group<'a>,
    pub(crate) plan: &'a Plan,
    /// The position of the first product, which is the first of a panel.
    pub(crate) first: usize,
    /// The chunk's products, which become its scores: `[panels, rows, width]`.
    pub(crate) scores: &'a mut [f32],
    /// Running maxima of each row that pass over NaN, `[rows, width]`: one for each lane.
    pub(crate) largest: &'a mut [f32],
    /// Whether `largest` already covers preceding chunks.
    pub(crate) total: Total,
}

impl<V: Vectors<f32>> Task<V> for Score<'_> {
    type Output = ();

    #[inline(always)]
    fn compute(mut self, v: V) {
        let width = WIDTH * V::LANES;
        let n_rows = self.plan.rows().len();
        let positions = self.first..self.first + self.scores.len() / n_rows;
        if !(self.is_plain() && self.plan.all_see(&positions)) {
            // All rows first, and the maxima after: loads of what was just stored in narrower pieces would
            // stall (no store forwarding).
            for row in 0..n_rows {
                self.adjust::<V>(row);
            }
        }
        for (row, lanes) in self.largest.chunks_exact_mut(width).enumerate() {
            for (j, lanes) in lanes.chunks_exact_mut(V::LANES).enumerate() {
                let mut largest = match self.total {
                    Total::New => v.splat(f32::NEG_INFINITY),
                    // SAFETY: `lanes` holds LANES numbers.
                    Total::Running => unsafe { v.load(lanes.as_ptr()) },
                };
                for scores in self.scores.chunks_exact(n_rows * width) {
                    let scores = &scores[row * width + j * V::LANES..][..V::LANES];
                    // SAFETY: `scores` holds LANES numbers.
                    let scores = unsafe { v.load(scores.as_ptr()) };
                    largest = zip(v, largest, scores, larger);
                }
                // SAFETY: `lanes` holds LANES numbers.
                unsafe { v.store(largest, lanes.as_mut_ptr()) };
            }
        }
    }
}

/// Written so that NaN in `b`, which compares false, leaves `a` as it is.
#[inline(always)]
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

impl Score<'_> {
    /// Whether the scores of seen keys are the products themselves: no cap, no bias, no marks.
    #[inline(always)]
    fn is_plain(&self) -> bool {
        let scoring = self.group.scoring;
        scoring.soft_cap.is_none() && scoring.biases.is_empty() && self.group.kept.marks.is_none()
    }

    /// Caps a row's products, adds the biases, and hides the keys that do not count.
    #[inline(always)]
    fn adjust<V: Vectors<f32>>(&mut self, row: usize) {
        let width = WIDTH * V::LANES;
        let n_rows = self.plan.rows().len();
        let n_panels = self.scores.len() / (n_rows * width);
        let (seen, row_of) = (&self.plan.seen()[row], self.plan.rows()[row]);
        let Scoring {
            soft_cap, biases, ..
        } = *self.group.scoring;
        let marks = self.group.kept.marks;
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
            if let Some(cap) = soft_cap {
                for score in &mut *scores {
                    *score = math::tanh::<Separate>(*score / cap) * cap;
                }
            }
            for bias in biases {
                let at = [self.group.sequence, row_of.head, row_of.query, inside.start];
                add(scores, bias, at);
            }
            if let Some(marks) = marks {
                for (score, &mark) in scores.iter_mut().zip(&marks[inside]) {
                    *score = if mark == 0 { f32::NEG_INFINITY } else { *score };
                }
            }
        }
    }
}

/// Adds a bias to consecutive scores; `at` is the sequence, head, query and key of the first.
#[inline(always)]
fn add(scores: &mut [f32], bias: &Bias, at: [usize; 4]) {
    let from = bias.from(at);
    match bias.strides[3] {
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

/// Sets the scores of a panel outside of the range `shown` to `-inf`, which is a weight of 0.
#[inline(always)]
fn hide(scores: &mut [f32], shown: Range<u32>) {
    // Without branches, so that the loop vectorises.
    for (at, score) in (0u32..).zip(scores) {
        let is_seen = (at >= shown.start) & (at < shown.end);
        *score = if is_seen { *score } else { f32::NEG_INFINITY };
    }
}

/// Computes `exp(score - largest)` for one chunk, packs it as left operand, and adds it to the sums.
pub(crate) struct Exponentiate<'a, F: Operand> {
    /// The chunk's scores, `[panels, rows, width]`.
    pub(crate) scores: &'a [f32],
    /// Maxima of each row over all chunks, `[rows, width]`. The first call reduces each row's to its first
    /// number.
    pub(crate) largest: &'a mut [f32],
    /// Rows of the packed left operand, from the first of these positions on.
    pub(crate) exponentials: &'a mut [F::Word],
    /// Running sums, `[rows, width]`.
    pub(crate) sums: &'a mut [f32],
    /// Whether `sums` already holds those of preceding chunks. The first chunk also reduces `largest`.
    pub(crate) total: Total,
}

impl<F: Operand, D: OperandDots<F>> Task<D> for Exponentiate<'_, F> {
    type Output = ();

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
                // -inf - -inf is NaN. Subtracting 0 instead leaves exp(-inf) = 0, and NaN where a NaN is seen.
                largest[0] = if all == f32::NEG_INFINITY { 0.0 } else { all };
            }
            let largest = largest[0];
            let mut sums = [v.splat(0.0); WIDTH];
            if self.total == Total::Running {
                for (j, sum) in sums.iter_mut().enumerate() {
                    // SAFETY: `lanes` holds WIDTH * LANES numbers.
                    *sum = unsafe { v.load(lanes.as_ptr().add(j * n_lanes)) };
                }
            }
            let exponentials = &mut self.exponentials[row * D::ROW_WORDS..];
            let exponentials = exponentials.chunks_exact_mut(D::LEFT_WORDS);
            for (panel, exponentials) in (0..n_panels).zip(exponentials) {
                let scores = &self.scores[(panel * n_rows + row) * width..][..width];
                let mut e = [v.splat(0.0); WIDTH];
                for (j, (e, sum)) in e.iter_mut().zip(&mut sums).enumerate() {
                    // SAFETY: `scores` holds WIDTH * LANES numbers.
                    let scores = unsafe { v.load(scores.as_ptr().add(j * n_lanes)) };
                    *e = exp(v, map(v, scores, |score| score - largest));
                    *sum = v.add(*sum, *e);
                }
                // SAFETY: `exponentials` holds LEFT_WORDS words.
                unsafe { d.pack_left(e, exponentials.as_mut_ptr()) };
            }
            for (j, sum) in sums.iter().enumerate() {
                // SAFETY: `lanes` holds WIDTH * LANES numbers.
                unsafe { v.store(*sum, lanes.as_mut_ptr().add(j * n_lanes)) };
            }
        }
    }
}

/// Reduces `WIDTH · LANES` numbers to one, by merging the upper half with the lower until one is left.
#[inline(always)]
pub(crate) fn fold<V: Vectors<f32>>(v: V, x: &[f32], merge: impl Fn(f32, f32) -> f32) -> f32 {
    assert_eq!(x.len(), WIDTH * V::LANES);
    // SAFETY: `x` holds two vectors, by the assertion above.
    let (low, high) = unsafe { (v.load(x.as_ptr()), v.load(x.as_ptr().add(V::LANES))) };
    let mut lanes = [0.0; MAX_LANES];
    // SAFETY: no vector has more than MAX_LANES.
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
