//! GELUs and their slopes as piecewise polynomials.
//!
//! Each function here, or its quotient by x, goes from 0 to 1 and is point-symmetric about (0, 1/2): 1/2 plus an odd
//! function, which its values right of 0 determine. Sixteen pieces, up to the point where the odd function is 1/2 in
//! f32, need degree-5 polynomials. A single piece would need degree 15 in x². 16 coefficients fill one register,
//! which serves as a lookup table (`vpermps`). On Zen 4, 16 GELUs take 13 cycles rather than 22.
//!
//! ```text
//! coefficients [power][piece]    distance |x| = piece · WIDTH + t,  |t| <= WIDTH / 2
//! ```

use std::{array, sync::LazyLock};

use super::smooth::{gelu_gate, gelu_slope, gelu_tanh_gate, gelu_tanh_slope};
use crate::vectors::{Isa, Level, LevelTask, Lookup, MAX_LANES, TABLE_LEN};

/// A function that is point-symmetric about (0, 1/2), or x times such a function.
#[repr(C, align(64))]
pub struct Pieces {
    /// The odd function: for each piece, one coefficient per power, where powers are in the distance from the
    /// piece's middle. Each power is a cache line.
    coefficients: [[f32; TABLE_LEN]; POWERS],
    times: Times,
}

/// The factor on the symmetric function.
#[derive(Clone, Copy)]
enum Times {
    One,
    X,
}

/// Coefficients per polynomial.
const POWERS: usize = 6;

/// A piece's width. Its middle is a multiple of the width. The width has few bits, so that products with small
/// integers are exact.
const WIDTH: f64 = 0.40625;

/// The point from which all these functions are 1 in f32. It lies within the last piece, so that rounding selects no
/// other.
const END: f64 = (TABLE_LEN as f64 - 0.75) * WIDTH;

/// [`gelu`](super::smooth::gelu), with an error up to 1.7 units in the last place below 1, times x; 1.4 with fused
/// multiply-adds.
pub static GELU: LazyLock<Pieces> = LazyLock::new(|| Pieces::new(|x| gelu_gate(x) - 0.5, Times::X));

/// [`gelu_slope`], with an error up to 2.5 units in the last place below 1.
pub static GELU_SLOPE: LazyLock<Pieces> =
    LazyLock::new(|| Pieces::new(|x| gelu_slope(x) - 0.5, Times::One));

/// [`gelu_tanh`](super::smooth::gelu_tanh), with the same error bound as [`GELU`].
pub static GELU_TANH: LazyLock<Pieces> =
    LazyLock::new(|| Pieces::new(|x| gelu_tanh_gate(x) - 0.5, Times::X));

/// [`gelu_tanh_slope`], with the same error bound as [`GELU_SLOPE`].
pub static GELU_TANH_SLOPE: LazyLock<Pieces> =
    LazyLock::new(|| Pieces::new(|x| gelu_tanh_slope(x) - 0.5, Times::One));

impl Pieces {
    /// Fits the pieces to the odd function in f64.
    fn new(odd: impl Fn(f64) -> f64, times: Times) -> Self {
        let mut coefficients = [[0.0; TABLE_LEN]; POWERS];
        for piece in 0..TABLE_LEN {
            let middle = piece as f64 * WIDTH;
            let polynomial = interpolated(|t| odd(middle + t), WIDTH / 2.0);
            for (row, coefficient) in coefficients.iter_mut().zip(polynomial) {
                row[piece] = coefficient as f32;
            }
        }
        Self {
            coefficients,
            times,
        }
    }

    /// Replaces each value by the function's value.
    pub fn apply(&self, isa: Isa, values: &mut [f32]) {
        isa.enter(ApplyPieces {
            pieces: self,
            values,
        });
    }
}

/// Returns the polynomial that interpolates a function at the Chebyshev nodes within `radius` around 0.
fn interpolated(function: impl Fn(f64) -> f64, radius: f64) -> [f64; POWERS] {
    let angle = |i: usize| (i as f64 + 0.5) * std::f64::consts::PI / POWERS as f64;
    let nodes: [f64; POWERS] = array::from_fn(|i| radius * libm::cos(angle(i)));
    // Newton's divided differences, then their products, expanded from the last one on.
    let mut differences = nodes.map(function);
    for order in 1..POWERS {
        for i in (order..POWERS).rev() {
            differences[i] = (differences[i] - differences[i - 1]) / (nodes[i] - nodes[i - order]);
        }
    }
    let mut polynomial = [0.0; POWERS];
    for (node, difference) in nodes.into_iter().zip(differences).rev() {
        for k in (1..POWERS).rev() {
            polynomial[k] = polynomial[k - 1] - node * polynomial[k];
        }
        polynomial[0] = difference - node * polynomial[0];
    }
    polynomial
}

struct ApplyPieces<'a> {
    pieces: &'a Pieces,
    values: &'a mut [f32],
}

impl LevelTask for ApplyPieces<'_> {
    #[inline(always)]
    fn compute<L: Level>(self, level: L) {
        self.replace(level);
    }
}

impl ApplyPieces<'_> {
    #[inline(always)]
    fn replace<V: Lookup>(self, v: V) {
        let pieces = InRegisters::new(v, self.pieces);
        let mut vectors = self.values.chunks_exact_mut(V::LANES);
        for x in &mut vectors {
            // SAFETY: `x` holds LANES elements.
            unsafe { v.store(pieces.value(v, v.load(x.as_ptr())), x.as_mut_ptr()) };
        }
        let rest = vectors.into_remainder();
        if rest.is_empty() {
            return;
        }
        let mut last = [0.0; MAX_LANES];
        last[..rest.len()].copy_from_slice(rest);
        // SAFETY: `last` holds MAX_LANES elements, as many as the longest vector.
        unsafe { v.store(pieces.value(v, v.load(last.as_ptr())), last.as_mut_ptr()) };
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// The tables and constants, in registers if there are enough.
struct InRegisters<'a, V: Lookup> {
    tables: [V::Table<'a>; POWERS],
    end: V::Vector,
    per_width: V::Vector,
    minus_width: V::Vector,
    magic: V::Vector,
    minus_magic: V::Vector,
    half: V::Vector,
    times: Times,
}

// Loops rather than closures, which would not be compiled with the instruction set.
impl<'a, V: Lookup> InRegisters<'a, V> {
    #[inline(always)]
    fn new(v: V, pieces: &'a Pieces) -> Self {
        // Adding this to a small value leaves the nearest integer in the mantissa's low bits.
        const MAGIC: f32 = 12_582_912.0; // 1.5 · 2²³
        let mut tables = [v.table(&pieces.coefficients[0]); POWERS];
        for (table, coefficients) in tables.iter_mut().zip(&pieces.coefficients) {
            *table = v.table(coefficients);
        }
        Self {
            tables,
            end: v.splat(END as f32),
            per_width: v.splat((1.0 / WIDTH) as f32),
            minus_width: v.splat(-WIDTH as f32),
            magic: v.splat(MAGIC),
            minus_magic: v.splat(-MAGIC),
            half: v.splat(0.5),
            times: pieces.times,
        }
    }

    #[inline(always)]
    fn value(&self, v: V, x: V::Vector) -> V::Vector {
        let distance = v.absolute(x);
        // NaN is the second operand, and so passes through.
        let clamped = v.least(self.end, distance);
        let place = v.multiply_add(clamped, self.per_width, self.magic);
        let piece = v.add(place, self.minus_magic);
        let t = v.multiply_add(piece, self.minus_width, clamped);
        let mut odd = v.look_up(self.tables[POWERS - 1], place);
        for k in (0..POWERS - 1).rev() {
            odd = v.multiply_add(odd, t, v.look_up(self.tables[k], place));
        }
        match self.times {
            Times::One => v.add(v.with_sign_of(odd, x), self.half),
            Times::X => v.multiply_add(distance, odd, v.multiply(x, self.half)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference;

    /// Returns the largest error over every `step`-th bit pattern, in half units in the last place at 1, or at x.
    fn worst(pieces: &Pieces, isa: Isa, exact: fn(f64) -> f64) -> (f64, f32) {
        let patterns: Vec<u32> = (0..=u32::MAX).step_by(10_009).collect();
        let mut worst = (0.0, 0.0);
        // Not a multiple of the lane count.
        for patterns in patterns.chunks(1003) {
            let x: Vec<f32> = patterns.iter().map(|&bits| f32::from_bits(bits)).collect();
            let mut y = x.clone();
            pieces.apply(isa, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                if x.is_nan() {
                    assert!(y.is_nan());
                    continue;
                }
                let scale = match pieces.times {
                    Times::One => 1.0,
                    Times::X => f64::from(x.abs()),
                };
                let unit = (scale * libm::exp2(-24.0)).max(f32::from_bits(1).into());
                let units = (f64::from(y) - exact(x.into())).abs() / unit;
                if units > worst.0 {
                    worst = (units, x);
                }
            }
        }
        worst
    }

    #[test]
    fn all_are_within_the_stated_error_on_every_level() {
        /// Name, pieces, exact function, largest error.
        type Case = (&'static str, &'static Pieces, fn(f64) -> f64, f64);
        let cases: [Case; 4] = [
            ("gelu", &GELU, reference::gelu, 1.7),
            ("gelu_tanh", &GELU_TANH, reference::gelu_tanh, 1.7),
            ("gelu_slope", &GELU_SLOPE, gelu_slope, 2.5),
            ("gelu_tanh_slope", &GELU_TANH_SLOPE, gelu_tanh_slope, 2.5),
        ];
        for isa in Isa::levels() {
            for (name, pieces, exact, bound) in cases {
                let (units, x) = worst(pieces, isa, exact);
                println!("{name}, {isa}: {units:.3} units, at {x:e}");
                let fits = (0.6 * bound..=bound).contains(&units);
                assert!(fits, "{name}: {units} at {x:e}");
            }
        }
    }

    #[test]
    fn ends_are_exact() {
        let x = [0.0, 7.0, -7.0, 1e30, -1e30, f32::MAX, f32::INFINITY];
        for isa in Isa::levels() {
            let apply = |pieces: &Pieces| {
                let mut values = x;
                pieces.apply(isa, &mut values);
                values
            };
            for values in [&*GELU, &*GELU_TANH].map(apply) {
                assert_eq!(values, [0.0, 7.0, 0.0, 1e30, 0.0, f32::MAX, f32::INFINITY]);
            }
            for slopes in [&*GELU_SLOPE, &*GELU_TANH_SLOPE].map(apply) {
                assert_eq!(slopes, [0.5, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0]);
            }
        }
    }
}
