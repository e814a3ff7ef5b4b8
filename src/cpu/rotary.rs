//! Rotary position embedding: pairs of dimensions, rotated by angles given as cosines and sines.

use super::{Element, Real, Routine, isa::Isa, parallel};

/// Which dimensions form a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `i` and `i + pairs`: the first half with the second.
    Halves,
    /// `2i` and `2i + 1`: neighbours.
    Interleaved,
}

/// Elements per piece of work.
const CHUNK: usize = 8192;

/// Writes the rows of `x`, `width` elements each, to `y`, with their first `2·pairs` dimensions rotated and the
/// others copied. `cos` and `sin` are tables of rows of `pairs` elements; `table_row(i)` is the row for row `i`
/// of `x`.
#[allow(clippy::too_many_arguments)] // two tables and their shape belong together, but have no owner here
pub fn rotate<T: Element>(
    x: &[T],
    width: usize,
    cos: &[T],
    sin: &[T],
    pairs: usize,
    pairing: Pairing,
    table_row: impl Fn(usize) -> usize + Send + Sync,
    y: &mut [T],
) {
    assert_eq!(x.len(), y.len());
    if width == 0 {
        return;
    }
    assert!(2 * pairs <= width);
    let rows = (CHUNK / width).max(1);
    parallel::for_chunks(y, rows * width, |start, y| {
        let x = &x[start..][..y.len()];
        let rows = x.chunks_exact(width).zip(y.chunks_exact_mut(width));
        for (row, (x, y)) in rows.enumerate() {
            let at = table_row(start / width + row) * pairs;
            let (cos, sin) = (&cos[at..][..pairs], &sin[at..][..pairs]);
            for i in 0..pairs {
                let (first, second) = match pairing {
                    Pairing::Halves => (i, i + pairs),
                    Pairing::Interleaved => (2 * i, 2 * i + 1),
                };
                let (a, b) = (x[first].widen(), x[second].widen());
                let (cos, sin) = (cos[i].widen(), sin[i].widen());
                let (a, b) = turn(a, b, cos, sin);
                y[first] = T::narrow(a);
                y[second] = T::narrow(b);
            }
            y[2 * pairs..].copy_from_slice(&x[2 * pairs..]);
        }
    });
}

/// Rotates the first `2·pairs` dimensions of each head of a row in place, by `pairs` cosines and sines.
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
    });
}

struct RotateHeads<'a> {
    row: &'a mut [f32],
    head_dim: usize,
    cos: &'a [f32],
    sin: &'a [f32],
    pairing: Pairing,
}

impl Routine for RotateHeads<'_> {
    #[inline(always)]
    fn run(self) {
        let turns = || self.cos.iter().zip(self.sin);
        for head in self.row.chunks_exact_mut(self.head_dim) {
            match self.pairing {
                Pairing::Halves => {
                    let (first, rest) = head.split_at_mut(self.cos.len());
                    for ((a, b), (&cos, &sin)) in first.iter_mut().zip(rest).zip(turns()) {
                        (*a, *b) = turn(*a, *b, cos, sin);
                    }
                }
                Pairing::Interleaved => {
                    for (pair, (&cos, &sin)) in head.chunks_exact_mut(2).zip(turns()) {
                        (pair[0], pair[1]) = turn(pair[0], pair[1], cos, sin);
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn turn<R: Real>(a: R, b: R, cos: R, sin: R) -> (R, R) {
    (a * cos + -(b * sin), b * cos + a * sin)
}

/// The numbers with their signs flipped.
pub fn negated<T: Element>(values: &[T]) -> Vec<T> {
    values
        .iter()
        .map(|v| T::narrow(T::Acc::of(-1.0) * v.widen()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_turn_in_place_as_rows_do() {
        let (head_dim, pairs, heads) = (9, 3, 4);
        let x: Vec<f32> = (0..heads * head_dim).map(|i| (i as f32).sin()).collect();
        let (cos, sin) = ([0.5, 0.25, -0.125], [0.75, -1.0, 0.3]);
        for pairing in [Pairing::Halves, Pairing::Interleaved] {
            let mut expected = vec![0.0; x.len()];
            rotate(
                &x,
                head_dim,
                &cos,
                &sin,
                pairs,
                pairing,
                |_| 0,
                &mut expected,
            );
            for isa in Isa::levels() {
                let mut found = x.clone();
                rotate_heads(isa, &mut found, head_dim, &cos, &sin, pairing);
                assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn rows_turn_and_turn_back() {
        let (width, pairs, rows) = (7, 2, 5);
        let x: Vec<f64> = (0..rows * width).map(|i| (i as f64).sin()).collect();
        let angle = |i: usize| 0.3 + i as f64;
        let cos: Vec<f64> = (0..rows * pairs).map(|i| angle(i).cos()).collect();
        let sin: Vec<f64> = (0..rows * pairs).map(|i| angle(i).sin()).collect();
        for pairing in [Pairing::Halves, Pairing::Interleaved] {
            let mut y = vec![0.0; x.len()];
            rotate(&x, width, &cos, &sin, pairs, pairing, |row| row, &mut y);
            let (first, second) = match pairing {
                Pairing::Halves => (1, 3),
                Pairing::Interleaved => (2, 3),
            };
            let row = 3 * width;
            let (c, s) = (angle(3 * pairs + 1).cos(), angle(3 * pairs + 1).sin());
            assert_eq!(y[row + first], x[row + first] * c - x[row + second] * s);
            assert_eq!(y[row + second], x[row + second] * c + x[row + first] * s);
            assert_eq!(y[row + 4..row + 7], x[row + 4..row + 7]);
            let mut back = vec![0.0; x.len()];
            rotate(
                &y,
                width,
                &cos,
                &negated(&sin),
                pairs,
                pairing,
                |row| row,
                &mut back,
            );
            for (a, b) in back.iter().zip(&x) {
                assert!((a - b).abs() < 1e-15);
            }
        }
    }
}
