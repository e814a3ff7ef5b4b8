//! Activations compared with the f64 reference: values, slopes, kinks, limits, and half types.

use half::{bf16, f16};

use super::{ActivationFunction, decay_complement::*, smooth::*, straight::*};
use crate::cpu::PIECE;
use crate::reference::{self, RoundingErrors, alone, on};
use crate::vectors::{Isa, Stored, fused::FusedF32};

/// The magnitude at which `1 + erf` cancels. The error is relative to it rather than to the result.
#[derive(Clone, Copy)]
enum Cancels {
    Nothing,
    /// Half a unit in the last place at 1, times x.
    AtX,
    /// Half a unit in the last place at 1.
    AtOne,
}

/// An activation in f32 and f64, with its exact value and the f32 value's largest error: in roundings at `|y| + |x
/// y'|` (an argument off by one rounding), plus the cancellation error.
struct Case {
    name: &'static str,
    activation: ActivationFunction,
    f32: [fn(f32) -> f32; 2],
    fused: fn(FusedF32) -> FusedF32,
    f64: [fn(f64) -> f64; 2],
    exact: fn(f64) -> f64,
    cancels: Cancels,
    units: f64,
    kinks: &'static [f64],
}

macro_rules! cases {
    ($($activation:ident $value:ident $slope:ident, $exact:expr, $cancels:ident $units:literal $kinks:expr;)*) => {
        vec![$(Case {
            name: stringify!($value),
            activation: ActivationFunction::$activation,
            f32: [$value, $slope],
            fused: $value,
            f64: [$value, $slope],
            exact: $exact,
            cancels: Cancels::$cancels,
            units: $units,
            kinks: &$kinks,
        }),*]
    };
}

fn cases() -> Vec<Case> {
    use reference::{sigmoid as exact_sigmoid, softplus as exact_softplus};
    cases! {
        Gelu gelu gelu_slope, reference::gelu, AtX 1.0 [];
        ClippedGelu clipped_gelu clipped_gelu_slope, |x| reference::gelu(x).min(10.0), AtX 1.0 [10.0];
        GeluTanh gelu_tanh gelu_tanh_slope, reference::gelu_tanh, Nothing 4.0 [];
        QuickGelu quick_gelu quick_gelu_slope, |x| x * exact_sigmoid(1.702 * x), Nothing 3.0 [];
        Silu silu silu_slope, |x| x * exact_sigmoid(x), Nothing 3.0 [];
        Sigmoid sigmoid sigmoid_slope, exact_sigmoid, Nothing 3.0 [];
        Tanh tanh tanh_slope, libm::tanh, Nothing 2.0 [];
        Mish mish mish_slope, |x| x * libm::tanh(exact_softplus(x)), Nothing 4.0 [];
        Softplus softplus softplus_slope, exact_softplus, Nothing 3.0 [20.0];
        SqrtSoftplus sqrt_softplus sqrt_softplus_slope, |x| exact_softplus(x).sqrt(), Nothing 3.0 [20.0];
        Laplace laplace laplace_slope, reference::laplace, AtOne 1.0 [];
        Relu relu relu_slope, |x| x.max(0.0), Nothing 0.0 [0.0];
        Relu2 relu2 relu2_slope, |x| x.max(0.0).powi(2), Nothing 0.5 [0.0];
        Relu6 relu6 relu6_slope, |x| x.clamp(0.0, 6.0), Nothing 0.0 [0.0, 6.0];
        LeakyRelu leaky_relu leaky_relu_slope, |x| if x > 0.0 { x } else { 0.01 * x }, Nothing 1.0 [0.0];
        HardSwish hard_swish hard_swish_slope, reference::hard_swish, Nothing 2.0 [-3.0, 3.0];
        Identity identity identity_slope, |x| x, Nothing 0.0 [];
    }
}

#[test]
fn the_complement_of_a_decay_and_its_slope_are_exact_from_0_on() {
    let exact = |x: f64| (-libm::expm1(-2.0 * x)).sqrt();
    let exact_slope = |x: f64| libm::exp(-2.0 * x) / (-libm::expm1(-2.0 * x)).max(2.5e-7).sqrt();
    let mut x: Vec<f32> = arguments().into_iter().filter(|x| *x >= 0.0).collect();
    x.extend([100.0, 1e4, f32::MAX, f32::INFINITY]);
    assert!(x.len() > 4000, "only {}", x.len());
    let apart = |found: f64, exact: f64| (found - exact).abs() / (exact.abs() + 1e-30);
    for isa in Isa::levels() {
        let (mut y, mut dx) = (vec![0.0; x.len()], vec![1.0; x.len()]);
        let function = ActivationFunction::DecayComplement;
        function.forward(on(isa, 1), f32::slice(&x), f32::slice_mut(&mut y));
        function.backward(on(isa, 1), f32::slice(&x), f32::slice_mut(&mut dx));
        for ((&x, y), dx) in x.iter().zip(y).zip(dx) {
            let x = f64::from(x);
            let [value, slope] = [apart(y.into(), exact(x)), apart(dx.into(), exact_slope(x))];
            // The exponential's argument has an error that grows with x.
            let allowed = f64::from(f32::EPSILON) * (4.0 + 2.0 * x.min(60.0));
            assert!(value <= allowed, "{isa}: {x:e} gives {y:e}");
            assert!(
                slope <= allowed || dx < 1e-37,
                "{isa}: {x:e} has the slope {dx:e}"
            );
            let [value, slope] = [decay_complement(x), decay_complement_slope(x)];
            let allowed = f64::EPSILON * (4.0 + 2.0 * x.min(60.0));
            assert!(apart(value, exact(x)) <= allowed, "{x:e} in f64");
            assert!(
                apart(slope, exact_slope(x)) <= allowed,
                "{x:e}'s slope in f64"
            );
        }
    }
}

/// Returns every magnitude from subnormal values to the range where all activations are flat or linear, with both
/// signs.
fn arguments() -> Vec<f32> {
    let grid = (-4000..=4000).map(|i| i as f32 * 0.005);
    let scales = (-149..=6).flat_map(|e| [1.0, 1.37, 1.83].map(|m| m * libm::exp2f(e as f32)));
    grid.chain(scales.clone())
        .chain(scales.map(|x| -x))
        .collect()
}

/// Returns the arguments that a comparison keeps, which are most of them.
fn arguments_with(keep: impl Fn(f32) -> bool) -> Vec<f32> {
    let kept: Vec<f32> = arguments().into_iter().filter(|&x| keep(x)).collect();
    assert!(kept.len() > 8000, "only {}", kept.len());
    kept
}

impl Case {
    fn allowed(&self, x: f64, unit: f64) -> f64 {
        let sensitivity = (self.exact)(x).abs() + (x * (self.f64[1])(x)).abs();
        let cancelled = match self.cancels {
            Cancels::Nothing => 0.0,
            Cancels::AtX => x.abs(),
            Cancels::AtOne => 1.0,
        };
        self.units * unit * (sensitivity + cancelled)
    }

    fn check_f32(&self, kind: &str, value: impl Fn(f32) -> f32) {
        let name = format!("{kind}{}", self.name);
        let mut worst = (0.0, 0.0);
        for &x in &arguments() {
            let exact = (self.exact)(x as f64);
            let error = (value(x) as f64 - exact).abs();
            let allowed = self.allowed(x as f64, f32::STORE) + f32::LEAST * (1.0 + x.abs() as f64);
            assert!(
                error <= allowed,
                "{name}({x:e}) is off by {error:e}, {allowed:e} allowed",
            );
            // Subnormal results always use half a unit, which says nothing about the others.
            if x.abs() > f32::MIN_POSITIVE && error / allowed > worst.0 {
                worst = (error / allowed, x);
            }
        }
        println!(
            "{name}: {:.0} % of the bound used, at {:e}",
            100.0 * worst.0,
            worst.1
        );
        assert!(
            self.units == 0.0 || worst.0 > 0.3,
            "{name}: the bound proves little",
        );
    }
}

#[test]
fn f32_values_are_within_their_units_around_the_exact_value() {
    for case in cases() {
        case.check_f32("", case.f32[0]);
    }
}

#[test]
fn fused_values_are_within_the_same_units() {
    for case in cases() {
        case.check_f32("fused ", |x| {
            let mut value = [x];
            let [fused] = FusedF32::of_slice(&mut value) else {
                unreachable!()
            };
            *fused = (case.fused)(*fused);
            value[0]
        });
    }
}

#[test]
fn f64_values_are_exact_to_f64() {
    for case in cases() {
        // PyTorch cuts softplus off at 20, and so does this crate.
        let is_cut = |x| case.name.ends_with("softplus") && x > 20.0;
        for x in arguments_with(|x| !is_cut(x)) {
            let x = x as f64;
            let error = ((case.f64[0])(x) - (case.exact)(x)).abs();
            // Both sides use libm, with an error up to one unit each.
            let allowed =
                2.0 * case.allowed(x, f64::STORE) + 4.0 * f64::STORE * (case.exact)(x).abs();
            assert!(
                error <= allowed + f64::LEAST * (1.0 + x.abs()),
                "{}({x:e}) is off by {error:e}",
                case.name
            );
        }
    }
}

#[test]
fn slopes_are_the_derivatives() {
    let step = libm::exp2(-13.0);
    for case in cases() {
        let is_near = |x: f64| case.kinks.iter().any(|kink| (x - kink).abs() <= 2.0 * step);
        for x in arguments_with(|x| !is_near(x as f64)) {
            let x = x as f64;
            let value = case.f64[0];
            // Five points: the truncation error is step⁴/30 · f⁗′, whose largest value is near 400.
            let rise = 8.0 * (value(x + step) - value(x - step))
                - (value(x + 2.0 * step) - value(x - 2.0 * step));
            let quotient = rise / (12.0 * step);
            let slope = (case.f64[1])(x);
            let rounding = 4.0 * f64::EPSILON * (value(x).abs() + x.abs() + 1.0) / step;
            let allowed = rounding + 400.0 / 30.0 * step.powi(4);
            let error = (quotient - slope).abs();
            assert!(
                error <= allowed,
                "{}'({x}) = {slope}, measured {quotient}",
                case.name
            );
        }
    }
}

#[test]
fn f32_slopes_agree_with_f64_slopes() {
    for case in cases() {
        let mut worst: f64 = 0.0;
        for x in arguments_with(|x| !case.kinks.contains(&(x as f64))) {
            let exact = (case.f64[1])(x as f64);
            let error =
                ((case.f32[1])(x) as f64 - exact).abs() / (4.0 * f32::STORE * exact.abs().max(1.0));
            assert!(
                error <= 1.0,
                "{}'({x:e}) is off by {error} of its bound",
                case.name
            );
            worst = worst.max(error);
        }
        println!("{}': {:.0} % of the bound used", case.name, 100.0 * worst);
    }
}

#[test]
fn kinks_have_pytorchs_slope() {
    /// Slope, argument, value.
    type Kink = (fn(f32) -> f32, f32, f32);
    let slopes: [Kink; 10] = [
        (relu_slope, 0.0, 0.0),
        (relu2_slope, 0.0, 0.0),
        (relu6_slope, 0.0, 0.0),
        (relu6_slope, 6.0, 0.0),
        (leaky_relu_slope, 0.0, 0.01),
        (leaky_relu_slope, -0.0, 0.01),
        (hard_swish_slope, -3.0, 0.0),
        (hard_swish_slope, 3.0, 1.0),
        (clipped_gelu_slope, 10.0, 0.0),
        (clipped_gelu_slope, 9.0, 1.0),
    ];
    for (i, (slope, x, expected)) in slopes.into_iter().enumerate() {
        assert_eq!(slope(x), expected, "line {i}");
    }
}

#[test]
fn nan_stays_nan_and_far_values_stay_finite() {
    for case in cases() {
        assert!((case.f32[0])(f32::NAN).is_nan(), "{}", case.name);
        assert!((case.f64[0])(f64::NAN).is_nan(), "{}", case.name);
        for x in [-1e18f32, -1e4, -200.0, 200.0, 1e4, 1e18] {
            let (value, slope) = ((case.f32[0])(x), (case.f32[1])(x));
            assert!(
                value.is_finite() && slope.is_finite(),
                "{}({x}): {value}, {slope}",
                case.name
            );
            assert!(
                x > 0.0 || slope.abs() <= 1.0,
                "{}'({x}) = {slope}",
                case.name
            );
        }
        let right = (case.f32[0])(f32::INFINITY);
        assert!(right > 0.0, "{}(inf) = {right}", case.name);
    }
}

#[test]
fn half_types_are_the_exact_value_rounded_once() {
    fn check<T: RoundingErrors>() {
        for case in cases() {
            let x: Vec<T> = arguments().iter().map(|&x| T::from_f64(x as f64)).collect();
            let mut y = vec![T::ZERO; x.len()];
            let of_y = T::slice_mut(&mut y);
            case.activation.forward(alone(), T::slice(&x), of_y);
            for (x, y) in x.iter().zip(&y) {
                let exact = (case.exact)(x.to_f64());
                // The error in piecewise GELUs: see `pieces`.
                let of_pieces = match case.activation {
                    ActivationFunction::Gelu | ActivationFunction::GeluTanh => {
                        1.7 * f32::STORE * x.to_f64().abs()
                    }
                    _ => 0.0,
                };
                let before = case.allowed(x.to_f64(), T::COMPUTE) + of_pieces;
                let allowed = before + T::STORE * (exact.abs() + before) + T::LEAST;
                let error = (y.to_f64() - exact).abs();
                assert!(
                    error <= allowed,
                    "{}({}) = {}",
                    case.name,
                    x.to_f64(),
                    y.to_f64()
                );
            }
        }
    }
    check::<f16>();
    check::<bf16>();
}

#[test]
fn the_loops_take_every_element_at_every_length() {
    for isa in Isa::levels() {
        for n in reference::WIDTHS
            .into_iter()
            .chain([2 * PIECE + 1, 5 * PIECE])
        {
            let normal = |seed| reference::normal(n, 0.0, 1.0, seed).into_iter();
            let x: Vec<f32> = normal(1).map(|x| 2.0 * x as f32).collect();
            let dy: Vec<f32> = normal(2).map(|dy| dy as f32).collect();
            let (mut y, mut dx) = (vec![0.0; n], dy.clone());
            let cpu = on(isa, 2);
            let silu = ActivationFunction::Silu;
            silu.forward(cpu, f32::slice(&x), f32::slice_mut(&mut y));
            silu.backward(cpu, f32::slice(&x), f32::slice_mut(&mut dx));
            for i in 0..n {
                let bound = 4.0 * f32::EPSILON;
                assert!((y[i] - super::smooth::silu(x[i])).abs() <= bound * y[i].abs());
                let slope = silu_slope(x[i]);
                assert!((dx[i] - dy[i] * slope).abs() <= bound * dy[i].abs());
            }
        }
    }
}

#[test]
fn each_activation_in_place_equals_its_loop() {
    let x = arguments();
    for isa in Isa::levels() {
        for case in cases() {
            let (mut y, mut in_place) = (vec![0.0; x.len()], x.clone());
            let of_y = f32::slice_mut(&mut y);
            case.activation.forward(on(isa, 1), f32::slice(&x), of_y);
            case.activation.apply(isa, &mut in_place);
            assert_eq!(y, in_place, "{} {isa}", case.name);
        }
    }
}
