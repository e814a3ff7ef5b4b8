//! `eˣ` for whole vectors, for the exponents that a softmax needs, up to 0.

use crate::vectors::{MAX_LANES, Vectors};

/// The exponent below which the result is 0. This drops the smallest normal and all subnormal results, which are
/// negligible beside the largest score's 1.
pub(crate) const LOWEST: f32 = -88.0;

/// The maximum error in [`exp`] from -87 to 0, in units in the last place.
#[cfg(test)]
pub(crate) const MAX_ULP: f64 = 0.96;

/// Returns `eˣ` in each lane, for `x <= 0`. NaN gives NaN, 0 gives exactly 1, and exponents below [`LOWEST`] give 0.
///
/// Like [`math::exp`](super::super::math::exp), it computes `eˣ = 2ⁿ eʳ` with `|r| <= ln 2 / 2` and the same
/// polynomial, but in half as many steps: multiply-adds are fused if the instruction set has them, and results are
/// never subnormal, so that 2ⁿ is one factor.
#[inline(always)]
pub(crate) fn exp<V: Vectors<f32>>(v: V, x: V::Vector) -> V::Vector {
    // Adding 1.5 · 2²³ leaves the nearest integer in the mantissa's low bits.
    const MAGIC: f32 = 12_582_912.0;
    let constant = |c: f32| v.splat(c);
    let x = map(v, x, |x| if x < LOWEST { LOWEST } else { x });
    let shifted = v.multiply_add(x, constant(std::f32::consts::LOG2_E), constant(MAGIC));
    let n = v.add(shifted, constant(-MAGIC));
    // ln 2 in two parts (Cody and Waite): the first has 10 bits, so that its product with `n` is exact.
    let r = v.multiply_add(n, constant(-0.693_359_4), x);
    let r = v.multiply_add(n, constant(2.121_944_4e-4), r);
    let mut p = constant(1.381_432e-3);
    for c in [8.368_851e-3, 4.166_84e-2, 1.666_652e-1, 4.999_999_4e-1] {
        p = v.multiply_add(p, r, constant(c));
    }
    // 2ⁿ. For the lowest possible n, -127, the exponent bits are 0's.
    let power = map(v, shifted, |shifted| {
        f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0f32.to_bits()))
    });
    let square = v.multiply_add(r, r, constant(0.0));
    let rest = v.multiply_add(square, p, r);
    // 2ⁿ · (1 + rest)
    v.multiply_add(power, rest, power)
}

/// Applies `f` to each lane. The lane count is a constant, so that the loop compiles to vector instructions.
#[inline(always)]
pub(crate) fn map<V: Vectors<f32>>(v: V, x: V::Vector, f: impl Fn(f32) -> f32) -> V::Vector {
    let mut lanes = [0.0; MAX_LANES];
    // SAFETY: `lanes` holds MAX_LANES elements, as many as the longest vector.
    unsafe { v.store(x, lanes.as_mut_ptr()) };
    for lane in &mut lanes[..V::LANES] {
        *lane = f(*lane);
    }
    // SAFETY: as above.
    unsafe { v.load(lanes.as_ptr()) }
}

/// Applies `f` to each lane pair.
#[inline(always)]
pub(crate) fn zip<V: Vectors<f32>>(
    v: V,
    x: V::Vector,
    y: V::Vector,
    f: impl Fn(f32, f32) -> f32,
) -> V::Vector {
    let (mut xs, mut ys) = ([0.0; MAX_LANES], [0.0; MAX_LANES]);
    // SAFETY: both arrays hold MAX_LANES elements, as many as the longest vector.
    unsafe { v.store(x, xs.as_mut_ptr()) };
    // SAFETY: as above.
    unsafe { v.store(y, ys.as_mut_ptr()) };
    for (x, y) in xs[..V::LANES].iter_mut().zip(ys) {
        *x = f(*x, y);
    }
    // SAFETY: as above.
    unsafe { v.load(xs.as_ptr()) }
}

/// Returns the larger value. NaN in `b` compares false, and leaves `a` unchanged.
#[inline(always)]
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{Isa, Level, LevelTask};

    struct All<'a> {
        x: &'a mut [f32],
    }

    impl LevelTask for All<'_> {
        fn compute<L: Level>(self, level: L) {
            self.replace(level);
        }
    }

    impl All<'_> {
        fn replace<V: Vectors<f32>>(self, v: V) {
            for x in self.x.chunks_exact_mut(V::LANES) {
                // SAFETY: `x` holds LANES elements.
                unsafe { v.store(exp(v, v.load(x.as_ptr())), x.as_mut_ptr()) };
            }
        }
    }

    fn exponentials(isa: Isa, x: &[f32]) -> Vec<f32> {
        let mut y = x.to_vec();
        y.resize(x.len().next_multiple_of(MAX_LANES), 0.0);
        isa.enter(All { x: &mut y });
        y.truncate(x.len());
        y
    }

    #[test]
    fn a_sample_of_all_exponents_is_within_the_stated_error() {
        for isa in Isa::levels() {
            let bits = (0..=87.0f32.to_bits()).step_by(if cfg!(miri) { 10_000_019 } else { 1009 });
            let x: Vec<f32> = bits.map(|bits| -f32::from_bits(bits)).collect();
            let mut worst: f64 = 0.0;
            for (x, y) in x.iter().zip(exponentials(isa, &x)) {
                let exact = libm::exp(f64::from(*x));
                let ulp = libm::exp2(f64::from(libm::ilogb(exact)) - 23.0);
                worst = worst.max((f64::from(y) - exact).abs() / ulp);
            }
            println!("{isa}: {worst:.3} ulp");
            assert!(worst <= MAX_ULP, "{isa}: {worst} ulp");
            assert!(worst > 0.7 * MAX_ULP || cfg!(miri), "{isa}: {worst} ulp");
        }
    }

    #[test]
    fn special_values_are_exact() {
        for isa in Isa::levels() {
            let x = [0.0, -0.0, f32::NEG_INFINITY, f32::MIN, LOWEST - 1.0, LOWEST];
            let bits: Vec<u32> = exponentials(isa, &x).iter().map(|y| y.to_bits()).collect();
            let one = 1.0f32.to_bits();
            assert_eq!(bits, [one, one, 0, 0, 0, 0], "{isa}");
            assert!(exponentials(isa, &[f32::NAN])[0].is_nan());
        }
    }
}
