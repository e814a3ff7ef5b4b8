//! Slow and simple f64 versions of the kernels, for tests only.

use std::f64::consts::{PI, SQRT_2};
use std::fmt::Display;

use bytemuck::{Pod, bytes_of};
use half::{bf16, f16};

use crate::{Cpu, Isa, Stored};

/// Returns the fastest instruction set, on the calling thread.
pub fn alone() -> Cpu {
    on(Isa::best(), 1)
}

/// Returns an instruction set with a thread count.
pub fn on(isa: Isa, threads: usize) -> Cpu {
    Cpu { isa, threads }
}

/// Asserts that an error, relative to its tolerance, is at most 1, and at least `least`, so that the tolerance is
/// not too loose.
#[track_caller]
pub fn assert_share(share: f64, least: f64, what: impl Display) {
    println!("{what}: {:.0} % of the tolerance used", 100.0 * share);
    assert!(share <= 1.0, "{what}: {share} of the tolerance");
    let proves = share > least || cfg!(miri);
    assert!(proves, "{what}: the tolerance proves little ({share})");
}

/// Asserts that values are equal in every bit.
#[track_caller]
pub fn assert_same<T: RoundingErrors + Pod>(found: &[T], expected: &[T], what: impl Display) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differ = |i: &usize| bytes_of(&found[*i]) != bytes_of(&expected[*i]);
    let wrong: Vec<usize> = (0..found.len()).filter(differ).collect();
    if let [first, ..] = wrong[..] {
        let (n, (found, expected)) = (
            wrong.len(),
            (found[first].to_f64(), expected[first].to_f64()),
        );
        panic!("{what}: {n} differ, the first {first}: {found:e}, expected {expected:e}");
    }
}

/// Returns `x · Φ(x)`, without the cancellation in `1 + erf`.
pub fn gelu(x: f64) -> f64 {
    0.5 * x * libm::erfc(-x / SQRT_2)
}

/// Returns the tanh approximation, as OpenAI wrote it.
pub fn gelu_tanh(x: f64) -> f64 {
    // 1 + tanh(u) = 2 / (1 + exp(-2u))
    let u = (2.0 / PI).sqrt() * (x + 0.044715 * x.powi(3));
    x / (1.0 + libm::exp(-2.0 * u))
}

/// Returns the logistic function.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// Returns `ln(1 + exp(x))`.
pub fn softplus(x: f64) -> f64 {
    if x > 0.0 {
        x + libm::log1p(libm::exp(-x))
    } else {
        libm::log1p(libm::exp(x))
    }
}

/// Returns the distribution function for the normal law N(0.707107, 0.282095²).
// Six digits as in transformers, not 1/√2.
#[allow(clippy::approx_constant)]
pub fn laplace(x: f64) -> f64 {
    0.5 * libm::erfc((0.707107 - x) / (0.282095 * SQRT_2))
}

/// Returns `x · min(max(x + 3, 0), 6) / 6`.
pub fn hard_swish(x: f64) -> f64 {
    x * (x + 3.0).clamp(0.0, 6.0) / 6.0
}

/// Returns `(x - mean) / sqrt(var + eps)` for one row.
pub fn standardize(row: &[f64], eps: f64) -> Vec<f64> {
    let n = row.len() as f64;
    let mean = row.iter().sum::<f64>() / n;
    let centered: Vec<f64> = row.iter().map(|x| x - mean).collect();
    scale_to_unit_mean_square(&centered, eps)
}

/// Returns `x / sqrt(mean(x²) + eps)` for one row.
pub fn scale_to_unit_mean_square(row: &[f64], eps: f64) -> Vec<f64> {
    let mean_square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    row.iter().map(|x| x / (mean_square + eps).sqrt()).collect()
}

/// Returns one row's softmax over the elements for which `seen` returns true, and 0 for the others.
pub fn softmax(row: &[f64], seen: impl Fn(usize) -> bool) -> Vec<f64> {
    let scores: Vec<f64> = (0..row.len())
        .map(|j| if seen(j) { row[j] } else { f64::NEG_INFINITY })
        .collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return vec![0.0; row.len()];
    }
    let exponentials: Vec<f64> = scores.iter().map(|x| libm::exp(x - max)).collect();
    let total: f64 = exponentials.iter().sum();
    exponentials.iter().map(|e| e / total).collect()
}

/// Widths around every lane count, and two that occur in models.
pub const WIDTHS: [usize; 14] = [0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 100, 768];

/// Returns `n` values from the normal law N(`mean`, `deviation`²), different for each `seed`, rounded to f32.
pub fn normal(n: usize, mean: f64, deviation: f64, seed: u64) -> Vec<f64> {
    // SplitMix64 and Box-Muller: enough for test data.
    let mut state = seed;
    let mut uniform = move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (((z ^ (z >> 31)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    };
    (0..n)
        .map(|_| {
            let radius = (-2.0 * uniform().ln()).sqrt();
            let angle = 2.0 * PI * uniform();
            (mean + deviation * radius * angle.cos()) as f32 as f64
        })
        .collect()
}

/// Returns the same values, rounded to a type.
pub fn random<T: RoundingErrors>(n: usize, mean: f64, deviation: f64, seed: u64) -> Vec<T> {
    let numbers = normal(n, mean, deviation, seed).into_iter();
    numbers.map(T::from_f64).collect()
}

/// Rounding errors for an element type and its kernels.
pub trait RoundingErrors: Stored {
    /// Half a unit in the last place at 1, for the stored type.
    const STORE: f64;
    /// Half a unit in the last place at 1, for the arithmetic type.
    const COMPUTE: f64;
    /// Half a unit in the last place at 1, for norms and long sums.
    const WIDE: f64;
    /// The smallest subnormal.
    const LEAST: f64;
    /// Rounds a test value to the type.
    fn from_f64(value: f64) -> Self;
    /// Converts to f64, exactly.
    fn to_f64(self) -> f64;
}

/// Implements [`RoundingErrors`] for a type, given its arithmetic type, the type for long sums, its epsilon and
/// smallest subnormal, and its conversions from and to f64.
macro_rules! rounding {
    ($($type:ty, $acc:ty, $wide:ty: $epsilon:expr, $least:expr, $from:expr, $to:expr;)*) => {
        $(impl RoundingErrors for $type {
            const STORE: f64 = $epsilon / 2.0;
            const COMPUTE: f64 = <$acc as RoundingErrors>::STORE;
            const WIDE: f64 = <$wide as RoundingErrors>::STORE;
            const LEAST: f64 = $least;
            fn from_f64(value: f64) -> Self {
                $from(value)
            }
            fn to_f64(self) -> f64 {
                $to(self)
            }
        })*
    };
}

rounding! {
    f32, f32, f64: f32::EPSILON as f64, f32::from_bits(1) as f64, |x| x as f32, f64::from;
    f64, f64, f64: f64::EPSILON, f64::from_bits(1), |x| x, |x| x;
    f16, f32, f32: f16::EPSILON.to_f64_const(), f16::from_bits(1).to_f64_const(), f16::from_f64, f16::to_f64;
    bf16, f32, f32: bf16::EPSILON.to_f64_const(), bf16::from_bits(1).to_f64_const(), bf16::from_f64, bf16::to_f64;
}
