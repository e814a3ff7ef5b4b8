//! Rotary position embedding: rotates dimension pairs, given cosines and sines.

use crate::cpu::Cpu;
use crate::vectors::{Element, Isa, Level, LevelTask, Real, Slice, SliceMut, Stored, with_type};

/// The dimensions that form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `i` and `i + pairs`: the first half with the second.
    Halves,
    /// `2i` and `2i + 1`: adjacent dimensions.
    Interleaved,
}

/// The direction of rotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Rotates by the angles.
    Forward,
    /// Rotates by the negative angles, for the gradient.
    Back,
}

/// A rotation for heads with `head_dim` elements each, in their first `2·pairs` dimensions.
pub struct Rotation<'a> {
    /// Dimensions per head.
    pub head_dim: usize,
    /// Pairs to rotate. The remaining dimensions are copied.
    pub pairs: usize,
    /// The dimensions that form a pair.
    pub pairing: Pairing,
    /// The direction of rotation.
    pub direction: Direction,
    /// Rows of `pairs` cosines.
    pub cos: Slice<'a>,
    /// Rows of `pairs` sines.
    pub sin: Slice<'a>,
    /// Returns the row in `cos` and `sin` for each head, counted through all rows.
    pub table_row: &'a (dyn Fn(usize) -> usize + Sync),
}

impl Rotation<'_> {
    /// Writes `x`'s rotated heads to `y`. All slices have one type.
    ///
    /// # Panics
    /// If lengths or types do not match.
    pub fn apply(&self, cpu: Cpu, x: Slice, y: SliceMut) {
        with_type!(x, T => {
            let (x, y) = (T::of_slice(x), T::of_slice_mut(y));
            assert_eq!(x.len(), y.len());
            let width = self.head_dim;
            assert!(width == 0 || 2 * self.pairs <= width);
            cpu.for_rows(y, width, |start, y| {
                y.copy_from_slice(&x[start..][..y.len()]);
                for (head, y) in y.chunks_exact_mut(width).enumerate() {
                    let at = (self.table_row)(start / width + head) * self.pairs;
                    cpu.isa.enter(RotateHeads {
                        row: y,
                        head_dim: width,
                        cos: &T::of_slice(self.cos)[at..][..self.pairs],
                        sin: &T::of_slice(self.sin)[at..][..self.pairs],
                        pairing: self.pairing,
                        direction: self.direction,
                    });
                }
            });
        });
    }
}

/// Rotates the first `2·pairs` dimensions in each head in place, by `pairs` cosines and sines.
pub fn rotate_heads(
    isa: Isa,
    row: &mut [f32],
    head_dim: usize,
    cos: &[f32],
    sin: &[f32],
    pairing: Pairing,
) {
    assert!(cos.len() == sin.len() && 2 * cos.len() <= head_dim);
    isa.enter(RotateHeads {
        row,
        head_dim,
        cos,
        sin,
        pairing,
        direction: Direction::Forward,
    });
}

struct RotateHeads<'a, T> {
    row: &'a mut [T],
    head_dim: usize,
    cos: &'a [T],
    sin: &'a [T],
    pairing: Pairing,
    direction: Direction,
}

impl<T: Element> LevelTask for RotateHeads<'_, T> {
    #[inline(always)]
    fn compute<L: Level>(self, _: L) {
        let angles = || self.cos.iter().zip(self.sin);
        for head in self.row.chunks_exact_mut(self.head_dim) {
            match self.pairing {
                Pairing::Halves => {
                    let (first, rest) = head.split_at_mut(self.cos.len());
                    for ((a, b), (&cos, &sin)) in first.iter_mut().zip(rest).zip(angles()) {
                        (*a, *b) = rotated_pair(*a, *b, cos, sin, self.direction);
                    }
                }
                Pairing::Interleaved => {
                    for (pair, (&cos, &sin)) in head.chunks_exact_mut(2).zip(angles()) {
                        (pair[0], pair[1]) =
                            rotated_pair(pair[0], pair[1], cos, sin, self.direction);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn rotated_pair<T: Element>(a: T, b: T, cos: T, sin: T, direction: Direction) -> (T, T) {
    let (a, b, cos, sin) = (a.widen(), b.widen(), cos.widen(), sin.widen());
    let sin = match direction {
        Direction::Forward => sin,
        Direction::Back => T::Acc::of(-1.0) * sin,
    };
    (
        T::narrow(a * cos + -(b * sin)),
        T::narrow(b * cos + a * sin),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::alone;

    fn rotated<T: Stored>(
        x: &[T],
        head_dim: usize,
        (cos, sin): (&[T], &[T]),
        pairs: usize,
        pairing: Pairing,
        direction: Direction,
    ) -> Vec<T> {
        let mut y = vec![T::ZERO; x.len()];
        let n_rows = cos.len() / pairs;
        let rotation = Rotation {
            head_dim,
            pairs,
            pairing,
            direction,
            cos: T::slice(cos),
            sin: T::slice(sin),
            table_row: &|head| head % n_rows,
        };
        rotation.apply(alone(), T::slice(x), T::slice_mut(&mut y));
        y
    }

    #[test]
    fn heads_rotated_in_place_equal_rotated_rows() {
        let (head_dim, pairs, heads) = (9, 3, 4);
        let x: Vec<f32> = (0..heads * head_dim).map(|i| (i as f32).sin()).collect();
        let (cos, sin) = ([0.5, 0.25, -0.125], [0.75, -1.0, 0.3]);
        for pairing in [Pairing::Halves, Pairing::Interleaved] {
            let tables = (&cos[..], &sin[..]);
            let expected = rotated(&x, head_dim, tables, pairs, pairing, Direction::Forward);
            for isa in Isa::levels() {
                let mut found = x.clone();
                rotate_heads(isa, &mut found, head_dim, &cos, &sin, pairing);
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn rows_rotate_and_rotate_back() {
        let (width, pairs, rows) = (7, 2, 5);
        let x: Vec<f64> = (0..rows * width).map(|i| (i as f64).sin()).collect();
        let angle = |i: usize| 0.3 + i as f64;
        let cos: Vec<f64> = (0..rows * pairs).map(|i| angle(i).cos()).collect();
        let sin: Vec<f64> = (0..rows * pairs).map(|i| angle(i).sin()).collect();
        for pairing in [Pairing::Halves, Pairing::Interleaved] {
            let y = rotated(&x, width, (&cos, &sin), pairs, pairing, Direction::Forward);
            let (first, second) = match pairing {
                Pairing::Halves => (1, 3),
                Pairing::Interleaved => (2, 3),
            };
            let row = 3 * width;
            let (c, s) = (angle(3 * pairs + 1).cos(), angle(3 * pairs + 1).sin());
            assert_eq!(y[row + first], x[row + first] * c - x[row + second] * s);
            assert_eq!(y[row + second], x[row + second] * c + x[row + first] * s);
            assert_eq!(y[row + 4..row + 7], x[row + 4..row + 7]);
            let back = rotated(&y, width, (&cos, &sin), pairs, pairing, Direction::Back);
            for (a, b) in back.iter().zip(&x) {
                assert!((a - b).abs() < 1e-15);
            }
        }
    }
}
