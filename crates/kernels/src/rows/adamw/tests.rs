//! AdamW compared with its paper, and its sum of squares with f64.

use super::*;
use crate::reference::{alone, on};
use crate::vectors::Isa;

const USUAL: Update = Update {
    learning_rate: 0.01,
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-8,
    weight_decay: 0.1,
    step: 3,
    gradient_scale: 0.5,
};

/// Performs one update on typed slices.
fn moved<T: Stored<Acc: Stored>>(
    cpu: Cpu,
    u: &Update,
    parameter: &mut [T],
    gradient: &[T],
    first: &mut [T::Acc],
    second: &mut [T::Acc],
) {
    let moments = [Stored::slice_mut(first), Stored::slice_mut(second)];
    update(cpu, u, T::slice_mut(parameter), T::slice(gradient), moments);
}

/// Performs AdamW as in its paper, in f64.
fn naive(u: &Update, p: f64, g: f64, m: f64, v: f64) -> (f64, f64, f64) {
    let g = g * u.gradient_scale;
    let m = u.beta1 * m + (1.0 - u.beta1) * g;
    let v = u.beta2 * v + (1.0 - u.beta2) * g * g;
    let m_hat = m / (1.0 - u.beta1.powi(u.step as i32));
    let v_hat = v / (1.0 - u.beta2.powi(u.step as i32));
    let p = p - u.learning_rate * (m_hat / (v_hat.sqrt() + u.eps) + u.weight_decay * p);
    (p, m, v)
}

#[test]
fn every_element_moves_as_in_the_paper_at_lengths_around_the_chunks() {
    let u = USUAL;
    let value = |i: usize, k: f64| ((i as f64 + 0.5) * k).sin();
    let sizes = [0, 1, 15, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7];
    for (isa, n) in Isa::levels()
        .into_iter()
        .flat_map(|isa| sizes.map(|n| (isa, n)))
    {
        let make = |k: f64| (0..n).map(|i| value(i, k)).collect::<Vec<f64>>();
        let (mut p, g, mut m) = (make(0.3), make(0.7), make(1.1));
        let mut v: Vec<f64> = make(1.3).iter().map(|v| v.abs()).collect();
        let old = (p.clone(), m.clone(), v.clone());
        moved(on(isa, 2), &u, &mut p, &g, &mut m, &mut v);
        for i in 0..n {
            let expected = naive(&u, old.0[i], g[i], old.1[i], old.2[i]);
            for (found, expected) in [(p[i], expected.0), (m[i], expected.1), (v[i], expected.2)] {
                assert!((found - expected).abs() <= 1e-14, "{i} of {n}");
            }
        }
    }
}

#[test]
fn without_decay_the_first_moment_is_the_gradient() {
    for (beta1, expected) in [(0.0, 1e-6f32), (0.25, 1e-6 + 0.25 * (1e4 - 1e-6))] {
        let u = Update {
            beta1,
            beta2: 0.0,
            weight_decay: 0.0,
            step: 2,
            gradient_scale: 1.0,
            ..USUAL
        };
        let (mut m, mut v) = ([1e4f32], [1e8f32]);
        moved(alone(), &u, &mut [1f32], &[1e-6], &mut m, &mut v);
        assert_eq!(m, [expected]);
    }
}

#[test]
fn every_level_gives_the_same_bits() {
    let u = Update {
        step: 5,
        gradient_scale: 0.3,
        ..USUAL
    };
    let make = |k: f32| {
        (0..1000)
            .map(|i| (i as f32 * k).sin())
            .collect::<Vec<f32>>()
    };
    let run = |isa| {
        let (mut p, g, mut m) = (make(0.3), make(0.7), make(1.1));
        let mut v: Vec<f32> = make(1.3).iter().map(|v| v.abs()).collect();
        moved(on(isa, 1), &u, &mut p, &g, &mut m, &mut v);
        let bits = [p, m, v].concat().into_iter().map(f32::to_bits);
        (
            bits.collect::<Vec<u32>>(),
            sum_of_squares(on(isa, 1), f32::slice(&g)).to_bits(),
        )
    };
    let portable = run(Isa::named("portable").unwrap());
    assert!(Isa::levels().into_iter().all(|isa| run(isa) == portable));
}

#[test]
fn half_types_keep_their_moments_in_f32() {
    let u = Update {
        beta2: 0.999,
        weight_decay: 0.0,
        step: 1,
        gradient_scale: 1.0,
        ..USUAL
    };
    let mut p = [half::bf16::from_f32(1.0); 3];
    // Its square is below bf16's precision beside other values, but not below f32's.
    let g = [half::bf16::from_f32(1e-3); 3];
    let (mut m, mut v) = ([0f32; 3], [0f32; 3]);
    moved(alone(), &u, &mut p, &g, &mut m, &mut v);
    let g = f64::from(g[0].to_f32());
    let (expected, ..) = naive(&u, 1.0, g, 0.0, 0.0);
    assert_eq!(p[0], half::bf16::from_f64(expected));
    assert!((f64::from(v[0]) - 1e-3 * g * g).abs() < 1e-12 * 1e-3);
}

#[test]
fn squares_are_summed_whole_and_on_any_number_of_threads() {
    for n in [0, 1, 255, 257, CHUNK, 2 * CHUNK + 3] {
        let x: Vec<f32> = (0..n).map(|i| (i % 7) as f32 - 3.0).collect();
        let expected: f64 = x.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        for (isa, threads) in Isa::levels()
            .into_iter()
            .flat_map(|isa| [1, 2, 5].map(|t| (isa, t)))
        {
            assert_eq!(
                sum_of_squares(on(isa, threads), f32::slice(&x)),
                expected,
                "{n}"
            );
        }
    }
    let mut x = vec![1f32; 2 * CHUNK];
    x[CHUNK + 3] = f32::NAN;
    let isa = Isa::best();
    assert!(sum_of_squares(on(isa, 2), f32::slice(&x)).is_nan());
    x[CHUNK + 3] = f32::NEG_INFINITY;
    assert_eq!(sum_of_squares(on(isa, 2), f32::slice(&x)), f64::INFINITY);
    // The square of 1e30 exceeds f32.
    assert!((sum_of_squares(alone(), f32::slice(&[1e30])) / 1e60 - 1.0).abs() < 1e-6);
}
