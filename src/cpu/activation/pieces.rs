//! GELUs by a polynomial for each piece of the number line.
//!
//! `x · G(x) = x/2 + |x| · (G(|x|) - 1/2)` for a gate G that is odd about (0, 1/2). Sixteen pieces up to where G is 1 in
//! f32 need a degree of 5, where one polynomial for all needs 15 in x²; and what is a register's lane to the CPU can be
//! looked up there. On Zen 4 16 numbers take 13 cycles instead of 22.

use std::{array, sync::LazyLock};

use super::super::{
    arch::{LOOKED_UP, Lookup, LookupTask, MOST_LANES},
    isa::Isa,
};

/// `x · G(x)`.
pub struct Pieces {
    /// Those of each power of the distance from a piece's middle, for each piece.
    coefficients: [[f32; LOOKED_UP]; POWERS],
}

/// Powers of each polynomial, the zeroth included.
const POWERS: usize = 6;

/// The width of a piece; its middle is a multiple of it. Few bits, so that products with small integers are exact.
const WIDTH: f64 = 0.375;

/// Here both gates are 1 in f32. Within the last piece, so that rounding finds no other.
const END: f64 = (LOOKED_UP as f64 - 0.75) * WIDTH;

/// [`gelu`](super::gelu); an error of at most 1.7 units in the last place below 1, times x; 1.3 where a product is added in
/// one rounding.
pub static GELU: LazyLock<Pieces> =
    LazyLock::new(|| Pieces::new(|x| 0.5 * libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)));

/// [`gelu_tanh`](super::gelu_tanh), with an error as of [`GELU`].
pub static GELU_TANH: LazyLock<Pieces> =
    LazyLock::new(|| Pieces::new(|x| super::gelu_tanh_gate(x) - 0.5));

impl Pieces {
    /// With the odd function `G - 1/2`.
    fn new(odd: impl Fn(f64) -> f64) -> Self {
        let mut coefficients = [[0.0; LOOKED_UP]; POWERS];
        for piece in 0..LOOKED_UP {
            let middle = piece as f64 * WIDTH;
            let polynomial = interpolated(|t| odd(middle + t), WIDTH / 2.0);
            for (row, coefficient) in coefficients.iter_mut().zip(polynomial) {
                row[piece] = coefficient as f32;
            }
        }
        Self { coefficients }
    }

    /// Of each number in place.
    pub fn apply(&self, isa: Isa, values: &mut [f32]) {
        isa.looking_up(Apply {
            pieces: self,
            values,
        });
    }
}

/// The polynomial that meets the function where a Chebyshev polynomial is 0, within `radius` of 0.
fn interpolated(function: impl Fn(f64) -> f64, radius: f64) -> [f64; POWERS] {
    let angle = |i: usize| (i as f64 + 0.5) * std::f64::consts::PI / POWERS as f64;
    let nodes: [f64; POWERS] = array::from_fn(|i| radius * libm::cos(angle(i)));
    // Newton's divided differences, and their products multiplied out from the last one on.
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

struct Apply<'a> {
    pieces: &'a Pieces,
    values: &'a mut [f32],
}

impl LookupTask for Apply<'_> {
    #[inline(always)]
    fn run<V: Lookup>(self, v: V) {
        let pieces = InRegisters::new(v, self.pieces);
        let mut vectors = self.values.chunks_exact_mut(V::LANES);
        for x in &mut vectors {
            // SAFETY: a chunk has LANES numbers.
            unsafe { v.store(pieces.value(v, v.load(x.as_ptr())), x.as_mut_ptr()) };
        }
        let rest = vectors.into_remainder();
        let mut last = [0.0; MOST_LANES];
        last[..rest.len()].copy_from_slice(rest);
        // SAFETY: no vector has more lanes than this array has numbers.
        unsafe { v.store(pieces.value(v, v.load(last.as_ptr())), last.as_mut_ptr()) };
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Pieces where they are looked up.
struct InRegisters<V: Lookup> {
    tables: [V::Table; POWERS],
    end: V::Vector,
    per_width: V::Vector,
    minus_width: V::Vector,
    magic: V::Vector,
    minus_magic: V::Vector,
    half: V::Vector,
}

// Loops and no closures, which would be left out of the level's instructions.
impl<V: Lookup> InRegisters<V> {
    #[inline(always)]
    fn new(v: V, pieces: &Pieces) -> Self {
        // Added to a small number, it leaves the nearest integer in the low bits of the mantissa.
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
        }
    }

    #[inline(always)]
    fn value(&self, v: V, x: V::Vector) -> V::Vector {
        let distance = v.absolute(x);
        let clamped = v.least(distance, self.end);
        let place = v.multiply_add(clamped, self.per_width, self.magic);
        let piece = v.add(place, self.minus_magic);
        let t = v.multiply_add(piece, self.minus_width, clamped);
        let mut odd = v.look_up(self.tables[POWERS - 1], place);
        for k in (0..POWERS - 1).rev() {
            odd = v.multiply_add(odd, t, v.look_up(self.tables[k], place));
        }
        v.multiply_add(distance, odd, v.multiply(x, self.half))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::reference;

    /// The largest error over every `step`-th bit pattern, in units of x times half a unit in the last place of 1.
    fn worst(pieces: &Pieces, isa: Isa, exact: fn(f64) -> f64) -> (f64, f32) {
        let patterns: Vec<u32> = (0..=u32::MAX).step_by(10_009).collect();
        let mut worst = (0.0, 0.0);
        // Not a multiple of the lanes.
        for patterns in patterns.chunks(1003) {
            let x: Vec<f32> = patterns.iter().map(|&bits| f32::from_bits(bits)).collect();
            let mut y = x.clone();
            pieces.apply(isa, &mut y);
            for (&x, &y) in x.iter().zip(&y) {
                if !x.is_finite() {
                    assert_eq!(y.is_nan(), x.is_nan() || x < 0.0, "{x} gave {y}");
                    continue;
                }
                let error = (f64::from(y) - exact(x.into())).abs();
                let unit = f64::from(x.abs()) * libm::exp2(-24.0);
                let units = error / unit.max(f64::from(f32::from_bits(1)));
                if units > worst.0 {
                    worst = (units, x);
                }
            }
        }
        worst
    }

    #[test]
    fn gelus_are_within_the_stated_error_on_every_level() {
        for isa in Isa::levels() {
            for (name, pieces, exact) in [
                ("gelu", &GELU, reference::gelu as fn(f64) -> f64),
                ("gelu_tanh", &GELU_TANH, reference::gelu_tanh),
            ] {
                let (units, x) = worst(pieces, isa, exact);
                println!("{name}, {}: {units:.3} units, at {x:e}", isa.name());
                assert!((0.9..=1.7).contains(&units), "{name}: {units} at {x:e}");
            }
        }
    }

    #[test]
    fn ends_are_exact() {
        for isa in Isa::levels() {
            for pieces in [&*GELU, &*GELU_TANH] {
                let mut values = [0.0, 6.0, -6.0, 1e30, -1e30, f32::MAX, f32::INFINITY];
                pieces.apply(isa, &mut values);
                let exact = [0.0, 6.0, 0.0, 1e30, 0.0, f32::MAX, f32::INFINITY];
                assert_eq!(values, exact, "{}", isa.name());
            }
        }
    }
}
