//! The softmax of the rows of a tile, but for the last division.

use std::ops::Range;

use super::{
    super::{
        arch::{MOST_LANES, Task, Vectors},
        math,
        tile::{CHUNK, WIDTH},
    },
    exp::{exp, map, zip},
    mask::{Kept, Scoring},
};

/// Turns the products of a tile's rows into `exp(score - largest)`, 0 for what does not count, and adds
/// them up.
pub(super) struct SoftmaxRows<'a> {
    pub(super) scoring: &'a Scoring<'a>,
    pub(super) kept: &'a Kept<'a>,
    pub(super) sequence: usize,
    /// Head and query of each row.
    pub(super) rows: &'a [(usize, usize)],
    /// The positions that each row sees, of those that are kept.
    pub(super) seen: &'a [Range<usize>],
    /// The position of the first product, which begins a panel.
    pub(super) first: usize,
    /// `[panels, rows, width]`.
    pub(super) scores: &'a mut [f32],
    /// `[chunks, rows, CHUNK]`; chunks begin at multiples of [`CHUNK`] positions.
    pub(super) exponentials: &'a mut [f32],
    /// Of each row's exponentials.
    pub(super) sums: &'a mut [f32],
}

impl Task<f32> for SoftmaxRows<'_> {
    #[inline(always)]
    fn run<V: Vectors<f32>>(mut self, v: V) {
        for row in 0..self.rows.len() {
            self.adjust::<V>(row);
            let largest = self.largest(v, row);
            // -inf - -inf is NaN; minus 0 instead leaves exp(-inf) = 0, and NaN where a NaN is seen.
            let shift = if largest == f32::NEG_INFINITY {
                0.0
            } else {
                largest
            };
            self.sums[row] = self.exponentiate(v, row, shift);
        }
    }
}

impl SoftmaxRows<'_> {
    /// Where the products of a row and panel are.
    #[inline(always)]
    fn panel<V: Vectors<f32>>(&self, panel: usize, row: usize) -> Range<usize> {
        let width = WIDTH * V::LANES;
        let start = (panel * self.rows.len() + row) * width;
        start..start + width
    }

    #[inline(always)]
    fn n_panels<V: Vectors<f32>>(&self) -> usize {
        self.scores.len() / (self.rows.len() * WIDTH * V::LANES)
    }

    /// Caps, adds biases, and hides what does not count.
    #[inline(always)]
    fn adjust<V: Vectors<f32>>(&mut self, row: usize) {
        let width = WIDTH * V::LANES;
        let seen = self.seen[row].clone();
        let Scoring {
            soft_cap, biases, ..
        } = *self.scoring;
        let is_plain = soft_cap.is_none() && biases.is_empty() && self.kept.marks.is_none();
        for panel in 0..self.n_panels::<V>() {
            let start = self.first + panel * width;
            let inside =
                seen.start.clamp(start, start + width)..seen.end.clamp(start, start + width);
            if is_plain && inside.len() == width {
                continue;
            }
            let at = self.panel::<V>(panel, row);
            let scores = &mut self.scores[at];
            let (before, after) = (inside.start - start, inside.end.max(inside.start) - start);
            scores[..before].fill(f32::NEG_INFINITY);
            scores[after..].fill(f32::NEG_INFINITY);
            let scores = &mut scores[before..after];
            if scores.is_empty() {
                continue;
            }
            if let Some(cap) = soft_cap {
                for score in &mut *scores {
                    *score = math::tanh(*score * (1.0 / cap)) * cap;
                }
            }
            for bias in biases {
                let (head, query) = self.rows[row];
                let from = bias.from([self.sequence, head, query, inside.start]);
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
            if let Some(marks) = self.kept.marks {
                for (score, &mark) in scores.iter_mut().zip(&marks[inside]) {
                    *score = if mark == 0 { f32::NEG_INFINITY } else { *score };
                }
            }
        }
    }

    /// The largest score that is not NaN.
    #[inline(always)]
    fn largest<V: Vectors<f32>>(&self, v: V, row: usize) -> f32 {
        // In this form NaN, which compares false, leaves the lane as it is.
        let larger = |a: f32, b: f32| if b > a { b } else { a };
        let mut largest = [v.splat(f32::NEG_INFINITY); WIDTH];
        for panel in 0..self.n_panels::<V>() {
            let scores = &self.scores[self.panel::<V>(panel, row)];
            for (largest, scores) in largest.iter_mut().zip(scores.chunks_exact(V::LANES)) {
                // SAFETY: `scores` holds LANES numbers.
                let scores = unsafe { v.load(scores.as_ptr()) };
                *largest = zip(v, *largest, scores, larger);
            }
        }
        let largest = zip(v, largest[0], largest[1], larger);
        fold(v, largest, larger)
    }

    /// Writes `exp(score - shift)` and returns the sum.
    #[inline(always)]
    fn exponentiate<V: Vectors<f32>>(&mut self, v: V, row: usize, shift: f32) -> f32 {
        let width = WIDTH * V::LANES;
        let mut sums = [v.splat(0.0); WIDTH];
        for panel in 0..self.n_panels::<V>() {
            let scores = &self.scores[self.panel::<V>(panel, row)];
            let position = self.first % CHUNK + panel * width;
            let start = (position / CHUNK * self.rows.len() + row) * CHUNK + position % CHUNK;
            let exponentials = &mut self.exponentials[start..start + width];
            for (j, sum) in sums.iter_mut().enumerate() {
                // SAFETY: both hold WIDTH * LANES numbers, as `panel` and the line above say.
                unsafe {
                    let scores = v.load(scores.as_ptr().add(j * V::LANES));
                    let x = map(v, scores, |score| score - shift);
                    let e = exp(v, x);
                    *sum = v.add(*sum, e);
                    v.store(e, exponentials.as_mut_ptr().add(j * V::LANES));
                }
            }
        }
        fold(v, v.add(sums[0], sums[1]), |a, b| a + b)
    }
}

/// Merges the upper half of the lanes with the lower until one is left.
#[inline(always)]
fn fold<V: Vectors<f32>>(v: V, x: V::Vector, merge: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; MOST_LANES];
    // SAFETY: no vector has more than MOST_LANES.
    unsafe { v.store(x, lanes.as_mut_ptr()) };
    let mut half = V::LANES / 2;
    while half > 0 {
        for lane in 0..half {
            lanes[lane] = merge(lanes[lane], lanes[lane + half]);
        }
        half /= 2;
    }
    lanes[0]
}
