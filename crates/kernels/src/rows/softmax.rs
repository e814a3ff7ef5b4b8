//! Row-wise softmax over each row's visible elements, forward and backward.
//!
//! `y = exp(x - max) / Σ exp(x - max)` over the visible elements, and exactly 0 for the others. A row without a
//! visible finite element is 0. Hidden elements are never read, so that not even a NaN there changes a bit. Element
//! `i` is always added in lane `i mod 16`, so that the bits do not depend on the number of hidden elements after the
//! visible ones.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::vectors::{
    Element, Isa, Level, LevelTask, Real, Slice, SliceMut, Stored, lanes::LANES, max, sum_pairs,
    update_and_sum, with_type,
};

/// The elements visible to a row.
#[derive(Clone, Debug)]
pub(crate) struct VisibleElements<'a> {
    /// The range that contains all visible elements.
    pub range: Range<usize>,
    /// A mask for the row's elements: 0 hides an element. Without a mask, all elements in `range` are visible.
    pub keep: Option<&'a [u8]>,
}

impl VisibleElements<'_> {
    /// Makes all elements in a range visible.
    pub fn all(range: Range<usize>) -> Self {
        Self { range, keep: None }
    }
}

/// Values for each row that a softmax reads or writes beside its elements.
pub(crate) struct PerRow<'a, T: Element> {
    /// One additional element, which is always visible. It is replaced by its softmax.
    pub sinks: Option<&'a mut [T]>,
    /// The rows' normalizers.
    pub normalizers: Normalizers<'a, T::Acc>,
}

impl<T: Element> PerRow<'_, T> {
    pub const NOTHING: Self = Self {
        sinks: None,
        normalizers: Normalizers::Unused,
    };
}

/// The use of the rows' normalizers, if the rows are parts of longer ones.
pub(crate) enum Normalizers<'a, T> {
    Unused,
    /// Each part's normalizers are written. The parts' results are joined by them.
    Written(&'a mut [Normalizer<T>]),
    /// The longer rows' normalizers are read, so that the parts of a row add up to one. These rows have no sinks.
    Read(&'a [Normalizer<T>]),
}

/// A row's normalizer: `Σ exp(x) = total · exp(largest)`, with a sink's element.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Normalizer<T> {
    pub largest: T,
    /// 0 if the row has no visible finite element.
    pub total: T,
}

impl<T: Element> Normalizer<T> {
    /// The normalizer of no elements.
    pub const NONE: Self = Self {
        largest: T::ZERO,
        total: T::ZERO,
    };
}

/// Writes the softmax of each row in `x`, with `width` elements, to `y`. Both have one type.
///
/// # Panics
/// If lengths or types do not match.
pub fn softmax(cpu: Cpu, x: Slice, y: SliceMut, width: usize) {
    with_type!(x, T => {
        let (x, y) = (T::of_slice(x), T::of_slice_mut(y));
        assert_eq!(x.len(), y.len());
        cpu.for_rows(y, width, |start, y| {
            forward_here(cpu.isa, &x[start..][..y.len()], y, width, PerRow::NOTHING, |_| VisibleElements::all(0..width));
        });
    });
}

/// Writes `x`'s gradient, given the gradient `dy` for its softmax `y`. See `backward_here`.
///
/// # Panics
/// If lengths or types do not match.
pub fn gradient(cpu: Cpu, y: Slice, dy: Slice, dx: SliceMut, width: usize) {
    with_type!(y, T => {
        let (y, dy, dx) = (T::of_slice(y), T::of_slice(dy), T::of_slice_mut(dx));
        assert_eq!((y.len(), dy.len()), (dx.len(), dx.len()));
        cpu.for_rows(dx, width, |start, dx| {
            backward_here(cpu.isa, &y[start..], &dy[start..], dx, width, Means::WHOLE);
        });
    });
}

/// Writes the softmax of each row in `x`, with `width` elements, to `y`, on the calling thread. `seen(i)` applies to
/// row `i`.
pub(crate) fn forward_here<'a, T: Element>(
    isa: Isa,
    x: &[T],
    y: &mut [T],
    width: usize,
    mut per_row: PerRow<T>,
    seen: impl Fn(usize) -> VisibleElements<'a>,
) {
    assert_eq!(x.len(), y.len());
    let mut scratch = vec![T::Acc::ZERO; width];
    let rows = x
        .chunks_exact(width.max(1))
        .zip(y.chunks_exact_mut(width.max(1)));
    for (index, (x, y)) in rows.enumerate() {
        let seen = seen(index);
        let PerRow { sinks, normalizers } = &mut per_row;
        let sink = sinks.as_mut().map(|sinks| &mut sinks[index]);
        let known = match normalizers {
            Normalizers::Read(all) => Some(all[index]),
            Normalizers::Unused | Normalizers::Written(_) => None,
        };
        let normalizer = isa.enter(ForwardTask {
            x,
            y,
            seen: &seen,
            scratch: &mut scratch,
            sink,
            known,
        });
        if let Normalizers::Written(all) = normalizers {
            all[index] = normalizer;
        }
    }
}

/// Computes `x`'s gradient for the softmax `y`, given its gradient `dy`: `dx = y · (dy - Σ y · dy)`. Runs on the
/// calling thread, for as many rows as `dx` has.
///
/// The mean `Σ y · dy` is subtracted twice. Rounded probabilities do not sum to exactly 1, which would leave a part
/// of any offset common to all `dy`. The second pass removes the remainder.
///
/// If `y` is 0, so is `dx`, whatever `dy`.
pub(crate) fn backward_here<T: Element>(
    isa: Isa,
    y: &[T],
    dy: &[T],
    dx: &mut [T],
    width: usize,
    means: Means<T>,
) {
    if width > 0 {
        isa.enter(BackwardTask {
            y,
            dy,
            dx,
            width,
            means,
        });
    }
}

/// The means that a softmax's backward pass subtracts.
pub(crate) enum Means<'a, T: Element> {
    /// Computed for each row. The rows' `sinks`, whose own `dy` is 0, are replaced by their gradients.
    Computed { sinks: Option<&'a mut [T]> },
    /// Given, because the rows are parts of longer ones.
    Given(&'a [T::Acc]),
}

impl<T: Element> Means<'_, T> {
    pub const WHOLE: Self = Self::Computed { sinks: None };
}

struct ForwardTask<'a, T: Element> {
    x: &'a [T],
    y: &'a mut [T],
    seen: &'a VisibleElements<'a>,
    scratch: &'a mut [T::Acc],
    sink: Option<&'a mut T>,
    known: Option<Normalizer<T::Acc>>,
}

impl<T: Element> LevelTask<Normalizer<T::Acc>> for ForwardTask<'_, T> {
    #[inline(always)]
    fn compute<L: Level>(self, _: L) -> Normalizer<T::Acc> {
        row(
            self.x,
            self.y,
            self.seen,
            self.scratch,
            (self.sink, self.known),
        )
    }
}

struct BackwardTask<'a, T: Element> {
    y: &'a [T],
    dy: &'a [T],
    dx: &'a mut [T],
    width: usize,
    means: Means<'a, T>,
}

impl<T: Element> LevelTask for BackwardTask<'_, T> {
    #[inline(always)]
    fn compute<L: Level>(mut self, _: L) {
        let rows = self
            .y
            .chunks_exact(self.width)
            .zip(self.dy.chunks_exact(self.width));
        let rows = rows.zip(self.dx.chunks_exact_mut(self.width));
        // A copy only where elements are read more than once.
        let n = match self.means {
            Means::Given(_) => 0,
            Means::Computed { .. } => self.width,
        };
        let mut probabilities = vec![T::Acc::ZERO; n];
        let mut cotangents = vec![T::Acc::ZERO; n];
        for (row, ((y, dy), dx)) in rows.enumerate() {
            let (mean, left) = match &mut self.means {
                Means::Given(means) => (means[row], T::Acc::ZERO),
                Means::Computed { sinks } => {
                    let read = probabilities.iter_mut().zip(&mut cotangents);
                    for ((probability, cotangent), (y, dy)) in read.zip(y.iter().zip(dy)) {
                        let (y, dy) = (y.widen(), dy.widen());
                        *probability = y;
                        *cotangent = if y == T::Acc::ZERO { y } else { dy };
                    }
                    let mean = sum_pairs(&probabilities, &cotangents, |y, dy| y * dy);
                    let mut left = sum_pairs(&probabilities, &cotangents, |y, dy| y * (dy - mean));
                    if let Some(sinks) = sinks {
                        let y = sinks[row].widen();
                        left += y * -mean;
                        sinks[row] = T::narrow(y * (-mean - left));
                    }
                    (mean, left)
                }
            };
            for (dx, (y, dy)) in dx.iter_mut().zip(y.iter().zip(dy)) {
                let (y, dy) = (y.widen(), dy.widen());
                let slope = y * ((dy - mean) - left);
                *dx = T::narrow(if y == T::Acc::ZERO { y } else { slope });
            }
        }
    }
}

#[inline(always)]
fn row<T: Element>(
    x: &[T],
    y: &mut [T],
    seen: &VisibleElements,
    scratch: &mut [T::Acc],
    (sink, known): (Option<&mut T>, Option<Normalizer<T::Acc>>),
) -> Normalizer<T::Acc> {
    let unseen = T::Acc::of(f64::NEG_INFINITY);
    let end = seen.range.end.min(x.len());
    let start = seen.range.start.min(end);
    if let Some(known) = known {
        let divisor = divisor(known.total);
        for (y, x) in y[start..end].iter_mut().zip(&x[start..end]) {
            *y = T::narrow((x.widen() - known.largest).exp() / divisor);
        }
        hide(y, start..end, seen.keep);
        return known;
    }
    // The sums start at a lane boundary within the whole row.
    let first = start - start % LANES;
    scratch[first..start].fill(unseen);
    match seen.keep {
        None => {
            for (score, x) in scratch[start..end].iter_mut().zip(&x[start..end]) {
                *score = x.widen();
            }
        }
        Some(keep) => {
            let marked = x[start..end].iter().zip(&keep[start..end]);
            for (score, (x, &keep)) in scratch[start..end].iter_mut().zip(marked) {
                *score = if keep == 0 { unseen } else { x.widen() };
            }
        }
    }

    let mut largest = max(&scratch[first..end]);
    if let Some(sink) = &sink {
        largest = largest.at_least(sink.widen());
    }
    // -inf - -inf is NaN. Subtracting 0 instead preserves exp(-inf) = 0, and NaN if a visible element is NaN.
    let shift = if largest == unseen {
        T::Acc::ZERO
    } else {
        largest
    };
    let mut total = update_and_sum(
        &mut scratch[first..end],
        |score| (score - shift).exp(),
        |e| e,
    );
    let sink_weight = sink.as_ref().map(|sink| (sink.widen() - shift).exp());
    if let Some(e) = sink_weight {
        total += e;
    }
    let divisor = divisor(total);
    if let (Some(sink), Some(e)) = (sink, sink_weight) {
        *sink = T::narrow(e / divisor);
    }

    for (y, &e) in y[start..end].iter_mut().zip(&scratch[start..end]) {
        *y = T::narrow(e / divisor);
    }
    hide(y, start..end, seen.keep);
    Normalizer {
        largest: shift,
        total,
    }
}

/// Returns the divisor for a row's exponentials, whose sum is 0 if there are none.
#[inline(always)]
fn divisor<T: Real>(total: T) -> T {
    if total == T::ZERO { T::of(1.0) } else { total }
}

/// Sets a row's hidden elements to 0.
#[inline(always)]
fn hide<T: Element>(y: &mut [T], shown: Range<usize>, keep: Option<&[u8]>) {
    y[..shown.start].fill(T::ZERO);
    y[shown.end..].fill(T::ZERO);
    if let Some(keep) = keep {
        // A visible NaN, which makes the divisor NaN, must not spread to hidden elements.
        for (y, &keep) in y[shown.clone()].iter_mut().zip(&keep[shown]) {
            *y = if keep == 0 { T::ZERO } else { *y };
        }
    }
}

#[cfg(test)]
mod tests;
