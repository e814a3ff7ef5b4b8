//! A convolution along the positions of a sequence, for each column alone (depthwise), with few taps.
//!
//! `y[r] = bias + Σ_t weight[t] · x[source(r, t)]`, elementwise. A table names the row that each tap reads, so
//! that sequences of any lengths, the rows before them and padding need no case of their own. Taps are added one by one,
//! in their order, to the bias or to zero. Neither other rows nor the number of threads have an influence on a row's bits.
//! The gradient of `x` is the same operation on the gradient of `y`, with a table that names, for each row and tap, the
//! result that read the row by this tap.

use crate::cpu::{Cpu, PIECE};
use crate::threads::parallel;
use crate::vectors::{Element, Loop, Slice, SliceMut, Stored, with_type};

/// A tap that reads no row: it adds nothing.
pub const NO_ROW: u32 = u32::MAX;

/// Columns whose sums are computed together.
const COLUMNS: usize = 64;

/// A convolution with `taps` rows of weights.
#[derive(Clone, Copy, Debug)]
pub struct Convolution<'a> {
    /// How many columns there are.
    pub width: usize,
    /// The weights of each tap, `[taps, width]`.
    pub weight: Slice<'a>,
    /// Added to every row.
    pub bias: Option<Slice<'a>>,
    /// The row that each tap of each result reads, `[rows, taps]`: a row of `before`, then those of `x`, or [`NO_ROW`].
    pub sources: &'a [u32],
}

impl Convolution<'_> {
    /// Computes a row of `y`, contiguous, for each row of the table. `before` has contiguous rows.
    ///
    /// # Panics
    /// If lengths or types do not match, or the table names a row that does not exist.
    pub fn apply(&self, cpu: Cpu, before: Slice, x: Slice, y: SliceMut) {
        with_type!(y.shared(), T => self.typed::<T>(cpu, before, x, T::of_slice_mut(y)));
    }

    fn typed<T: Stored>(&self, cpu: Cpu, before: Slice, x: Slice, y: &mut [T]) {
        let width = self.width;
        if width == 0 || y.is_empty() {
            return;
        }
        let weight = T::of_slice(self.weight);
        let bias = self.bias.map(T::of_slice);
        let taps = weight.len() / width;
        assert!(taps > 0 && weight.len() == taps * width);
        assert!(bias.is_none_or(|bias| bias.len() == width));
        assert_eq!(y.len() / width * taps, self.sources.len());
        let before = Rows::<T>::new(before, x, width);
        let chunk = (PIECE / width).max(1);
        let threads = cpu.for_elements(y.len() / 4 * taps).threads;
        parallel::for_chunks(threads, y, chunk * width, |start, y| {
            cpu.isa.enter(Loop(|| {
                for (i, y) in y.chunks_exact_mut(width).enumerate() {
                    let row = start / width + i;
                    let sources = &self.sources[row * taps..(row + 1) * taps];
                    for first in (0..width).step_by(COLUMNS) {
                        let columns = first..width.min(first + COLUMNS);
                        let mut sums = [T::Acc::ZERO; COLUMNS];
                        if let Some(bias) = bias {
                            for (sum, b) in sums.iter_mut().zip(&bias[columns.clone()]) {
                                *sum = b.widen();
                            }
                        }
                        for (tap, &source) in sources.iter().enumerate() {
                            let Some(x) = before.row(source) else {
                                continue;
                            };
                            let weight = &weight[tap * width..][columns.clone()];
                            let terms = x[columns.clone()].iter().zip(weight);
                            for (sum, (x, w)) in sums.iter_mut().zip(terms) {
                                *sum += x.widen() * w.widen();
                            }
                        }
                        for (y, sum) in y[columns].iter_mut().zip(sums) {
                            *y = T::narrow(sum);
                        }
                    }
                }
            }));
        });
    }
}

/// Copies the rows of `before` and `x` that `sources` names to contiguous rows of `y`; [`NO_ROW`] is a row of zeros.
///
/// # Panics
/// If lengths or types do not match, or the table names a row that does not exist.
pub fn gather(width: usize, sources: &[u32], before: Slice, x: Slice, y: SliceMut) {
    with_type!(y.shared(), T => {
        let rows = Rows::<T>::new(before, x, width);
        let y = T::of_slice_mut(y);
        assert_eq!(y.len(), sources.len() * width);
        for (y, &source) in y.chunks_exact_mut(width.max(1)).zip(sources) {
            match rows.row(source) {
                Some(row) => y.copy_from_slice(row),
                None => y.fill(T::narrow(<T as Element>::Acc::ZERO)),
            }
        }
    });
}

/// The rows that a table counts: those before, then those of a pass.
struct Rows<'a, T> {
    before: &'a [T],
    x: &'a [T],
    width: usize,
}

impl<'a, T: Stored> Rows<'a, T> {
    fn new(before: Slice<'a>, x: Slice<'a>, width: usize) -> Self {
        Self {
            before: T::of_slice(before),
            x: T::of_slice(x),
            width,
        }
    }

    #[inline(always)]
    fn row(&self, source: u32) -> Option<&'a [T]> {
        if source == NO_ROW {
            return None;
        }
        let (at, width) = (source as usize, self.width);
        Some(match at.checked_sub(self.before.len() / width) {
            Some(at) => &self.x[at * width..][..width],
            None => &self.before[at * width..][..width],
        })
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::reference::{on, random};
    use crate::vectors::Isa;

    /// Returns a table of `rows` results that read random rows of `n`, some of them none.
    fn table(rows: usize, taps: usize, n: usize) -> Vec<u32> {
        let of = |i: usize| match (i * 7919 + 13) % (n + 1) {
            last if last == n => NO_ROW,
            row => row as u32,
        };
        (0..rows * taps).map(of).collect()
    }

    /// Computes the formula in f64.
    fn expected(
        [width, taps, n_before]: [usize; 3],
        [weight, bias, before, x]: [&[f32]; 4],
        sources: &[u32],
    ) -> Vec<f64> {
        let mut y = Vec::new();
        for sources in sources.chunks(taps) {
            for c in 0..width {
                let mut sum = f64::from(bias[c]);
                for (tap, &source) in sources.iter().enumerate() {
                    let value = match source {
                        NO_ROW => 0.0,
                        row if (row as usize) < n_before => before[row as usize * width + c],
                        row => x[(row as usize - n_before) * width + c],
                    };
                    sum += f64::from(weight[tap * width + c]) * f64::from(value);
                }
                y.push(sum);
            }
        }
        y
    }

    #[test]
    fn results_are_those_of_the_formula_on_every_level() {
        for (width, taps) in [(1, 1), (3, 2), (64, 3), (65, 4), (200, 7)] {
            for (rows, n_before, n_x) in [(1, 0, 1), (5, 4, 9), (300, 6, 40)] {
                let weight: Vec<f32> = random(taps * width, 0.0, 0.5, 1);
                let bias: Vec<f32> = random(width, 0.0, 0.5, 2);
                let before: Vec<f32> = random(n_before * width, 0.0, 0.5, 3);
                let x: Vec<f32> = random(n_x * width, 0.0, 0.5, 4);
                let sources = table(rows, taps, n_before + n_x);
                let sizes = [width, taps, n_before];
                let expected = expected(sizes, [&weight, &bias, &before, &x], &sources);
                let convolution = Convolution {
                    width,
                    weight: (&weight[..]).into(),
                    bias: Some((&bias[..]).into()),
                    sources: &sources,
                };
                for isa in Isa::levels() {
                    let mut y = vec![f32::NAN; rows * width];
                    let mut alone = y.clone();
                    let (x, before) = ((&x[..]).into(), (&before[..]).into());
                    convolution.apply(on(isa, 3), before, x, (&mut y[..]).into());
                    for (y, expected) in y.iter().zip(&expected) {
                        let bound = 1e-6 * (taps + 2) as f64;
                        assert!((f64::from(*y) - expected).abs() < bound, "{isa}");
                    }
                    // A row alone has the same bits.
                    for (y, sources) in alone.chunks_mut(width).zip(sources.chunks(taps)) {
                        let own = Convolution {
                            sources,
                            ..convolution
                        };
                        own.apply(on(isa, 1), before, x, y.into());
                    }
                    assert_eq!(alone, y, "{isa}");
                }
            }
        }
    }

    #[test]
    fn half_types_sum_in_f32_and_round_once() {
        let (width, taps) = (70, 3);
        let [weight, x] = [taps, 9].map(|rows| random::<bf16>(rows * width, 0.0, 0.5, rows as u64));
        let sources = table(9, taps, 9);
        let mut y = vec![bf16::ZERO; 9 * width];
        let convolution = Convolution {
            width,
            weight: (&weight[..]).into(),
            bias: None,
            sources: &sources,
        };
        let none: &[bf16] = &[];
        let rows = (&x[..]).into();
        convolution.apply(
            on(Isa::levels()[0], 1),
            none.into(),
            rows,
            (&mut y[..]).into(),
        );
        for (r, sources) in sources.chunks(taps).enumerate() {
            for c in 0..width {
                let terms = sources.iter().enumerate().filter(|(_, of)| **of != NO_ROW);
                let sum = terms.fold(0f32, |sum, (tap, &of)| {
                    let x = x[of as usize * width + c].to_f32();
                    sum + x * weight[tap * width + c].to_f32()
                });
                assert_eq!(y[r * width + c], bf16::from_f32(sum));
            }
        }
    }

    #[test]
    fn rows_are_gathered_from_both_parts() {
        let (before, x) = ([1f64, 2.0, 3.0, 4.0], [5f64, 6.0, 9.0, 10.0]);
        let mut y = [0f64; 6];
        let rows = (&x[..]).into();
        gather(
            2,
            &[3, NO_ROW, 1],
            (&before[..]).into(),
            rows,
            (&mut y[..]).into(),
        );
        assert_eq!(y, [9.0, 10.0, 0.0, 0.0, 3.0, 4.0]);
    }
}
