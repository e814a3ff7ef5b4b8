//! Composed operations on the CPU compared with the kernels: values, and every gradient.

use std::{f64::consts::TAU, slice};

use candle_core::{DType, Device, Result, Tensor, Var};
use rand::{RngExt, SeedableRng};

use crate::config::{Activation, NormConfig, NormWeight, Precision, RotaryPairing, Visibility};
use crate::ops::constants::Constants;
use crate::ops::{
    self, BiasTensor, Content, Mixing, Relative, Route, SoftmaxInput, Term, Value, Visible,
    XieluNumbers,
};

/// Returns a tensor as a composed value on the CPU.
fn on(x: &Tensor) -> Value {
    Value::on(Route::Composed, Precision::F32, x).unwrap()
}

fn norm(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, config: &NormConfig) -> Result<Tensor> {
    on(x).norm(weight, bias, config)?.tensor()
}

fn activate(x: &Tensor, activation: Activation) -> Result<Tensor> {
    on(x).activate(activation)?.tensor()
}

fn random(shape: &[usize], mean: f64, deviation: f64, seed: u64) -> Var {
    let mut rng = chacha20::ChaCha12Rng::seed_from_u64(seed);
    let mut normal = || {
        let (u, angle) = (1.0 - rng.random::<f64>(), TAU * rng.random::<f64>());
        mean + deviation * (-2.0 * u.ln()).sqrt() * angle.cos()
    };
    let values = (0..shape.iter().product()).map(|_| normal()).collect();
    Var::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    let wide = tensor.to_dtype(DType::F64).unwrap();
    wide.flatten_all().unwrap().to_vec1().unwrap()
}

/// Returns `f`'s value, and the gradients for `vars` with an asymmetric output gradient.
fn value_and_gradients(
    vars: &[Var],
    dtype: DType,
    f: &dyn Fn(&[Tensor]) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let args = vars.iter().map(|v| v.to_dtype(dtype));
    let y = f(&args.collect::<Result<Vec<_>>>()?)?;
    let cotangent = random(y.dims(), 0.3, 1.0, 99).to_dtype(dtype)?;
    let grads = (&y * cotangent)?.sum_all()?.backward()?;
    let gradient = |var| grads.get(var).expect("every variable has a gradient");
    let gradients = vars.iter().map(|var| gradient(var).clone());
    Ok([y].into_iter().chain(gradients).collect())
}

const TYPES: [(DType, f64); 4] = [
    (DType::F64, f64::EPSILON),
    (DType::F32, f32::EPSILON as f64),
    (DType::BF16, half::bf16::EPSILON.to_f64_const()),
    (DType::F16, half::f16::EPSILON.to_f64_const()),
];

/// Compares both routes: in f64 to its precision, in f32 and the half types to theirs.
fn compare(
    types: &[(DType, f64)],
    name: &str,
    vars: &[Var],
    fused: &dyn Fn(&[Tensor]) -> Result<Tensor>,
    composed: &dyn Fn(&[Tensor]) -> Result<Tensor>,
) {
    for &(dtype, epsilon) in types {
        let fused = value_and_gradients(vars, dtype, fused).unwrap();
        let composed = value_and_gradients(vars, dtype, composed).unwrap();
        for (which, (a, b)) in fused.iter().zip(&composed).enumerate() {
            assert_eq!((a.dims(), a.dtype()), (b.dims(), b.dtype()), "{name}");
            let (a, b) = (numbers(a), numbers(b));
            let size = a.iter().fold(1.0, |m: f64, v| m.max(v.abs()));
            for (i, (a, b)) in a.iter().zip(&b).enumerate() {
                // A dozen roundings on either side, relative to the largest value.
                let allowed = 24.0 * epsilon * size;
                assert!(
                    (a - b).abs() <= allowed,
                    "{name} {dtype:?}, tensor {which}[{i}]: {a} fused, {b} composed"
                );
            }
        }
    }
}

#[test]
fn norms_agree() {
    for config in [
        NormConfig::layer_norm(19, 1e-5),
        NormConfig::layer_norm(19, 1e-5)
            .with_bias(false)
            .with_weight(NormWeight::OnePlus),
        NormConfig::rms_norm(19, 1e-6),
        NormConfig::rms_norm(19, 1e-6)
            .with_weight(NormWeight::OnePlus)
            .with_bias(true),
    ] {
        let mut vars = vec![random(&[2, 3, 19], 0.5, 2.0, 1), random(&[19], 1.0, 0.3, 2)];
        if config.bias {
            vars.push(random(&[19], 0.0, 0.5, 3));
        }
        let name = format!("{config:?}");
        let fused = |a: &[Tensor]| ops::norm(&a[0], &a[1], a.get(2), &config);
        let composed = |a: &[Tensor]| norm(&a[0], &a[1], a.get(2), &config);
        compare(&TYPES, &name, &vars, &fused, &composed);
    }
}

#[test]
fn a_large_mean_keeps_its_digits() {
    let config = NormConfig::layer_norm(64, 1e-12).with_bias(false);
    let x = random(&[4, 64], 1e3, 1e-2, 1).to_dtype(DType::F32).unwrap();
    let weight = Tensor::ones(64, DType::F32, &Device::Cpu).unwrap();
    let exact = ops::norm(
        &x.to_dtype(DType::F64).unwrap(),
        &weight.to_dtype(DType::F64).unwrap(),
        None,
        &config,
    );
    let found = norm(&x, &weight, None, &config).unwrap();
    assert_eq!(found.dims(), [4, 64]);
    for (a, b) in numbers(&exact.unwrap()).iter().zip(numbers(&found)) {
        assert!(
            (a - b).abs() <= 24.0 * f32::EPSILON as f64 * 4.0,
            "{a} and {b}"
        );
    }
}

#[test]
fn xielus_agree() {
    let vars = [
        random(&[3, 50], 0.0, 3.0, 4),
        random(&[1], 0.2, 1.0, 5),
        random(&[1], 0.2, 1.0, 6),
    ];
    let on_route = |route: Route| {
        move |a: &[Tensor]| {
            let number = |value: f64| Tensor::full(value, (), &Device::Cpu)?.to_dtype(a[0].dtype());
            let numbers = XieluNumbers {
                positive: &a[1],
                negative: &a[2],
                slope: &number(0.5)?,
                knee: &number(-1e-6)?,
            };
            let x = Value::on(route, Precision::F32, &a[0])?;
            x.xielu(numbers)?.tensor()
        }
    };
    let (fused, composed) = (on_route(Route::Kernels), on_route(Route::Composed));
    compare(&TYPES, "xIELU", &vars, &fused, &composed);
}

#[test]
fn activations_agree() {
    for activation in Activation::all() {
        let x = random(&[3, 50], 0.0, 3.0, 4);
        let fused = |a: &[Tensor]| ops::activate(&a[0], activation);
        let composed = |a: &[Tensor]| activate(&a[0], activation);
        compare(&TYPES, activation.name(), &[x], &fused, &composed);
    }
}

#[test]
fn activations_agree_at_kinks_and_far_out() {
    let points = [
        -1e18, -200.0, -101.0, -60.0, -40.5, -25.0, -3.0, -0.0, 0.0, 3.0, 6.0, 10.0, 20.0, 25.0,
        45.0, 200.0,
    ];
    for activation in Activation::all() {
        for &x in &points {
            let run = |dtype: DType, f: &dyn Fn(&Tensor, Activation) -> Result<Tensor>| {
                let x = Tensor::new(x, &Device::Cpu).unwrap().to_dtype(dtype);
                let x = Var::from_tensor(&x.unwrap()).unwrap();
                let y = f(&x, activation).unwrap();
                let slope = y.backward().unwrap().get(&x).unwrap().clone();
                [numbers(&y)[0], numbers(&slope)[0]]
            };
            for &(dtype, epsilon) in &TYPES[..2] {
                let fused = run(dtype, &ops::activate);
                let composed = run(dtype, &activate);
                // candle's tanh' is 1 - tanh², and the x² in gelu's graph overflows at 1e18 times eps.
                let allowed = 24.0 * epsilon * fused[0].abs().max(1.0);
                for (a, b) in fused.iter().zip(&composed) {
                    assert!(
                        (a - b).abs() <= allowed,
                        "{activation} {dtype:?} at {x}: {fused:?} fused, {composed:?} composed"
                    );
                }
            }
        }
    }
}

#[test]
fn softmax_agrees() {
    let x = random(&[3, 9], 0.0, 2.0, 6);
    let fused = |a: &[Tensor]| ops::softmax(&a[0]);
    compare(&TYPES, "softmax", &[x], &fused, &|a| {
        on(&a[0]).softmax(SoftmaxInput::Any)?.tensor()
    });
}

#[test]
fn rotations_agree() {
    let tables = [7, 8].map(|seed| random(&[2, 3, 2], 0.0, 1.0, seed).detach());
    for pairing in [RotaryPairing::Halves, RotaryPairing::Interleaved] {
        // Four out of five dimensions rotate, in four heads.
        let x = random(&[2, 4, 3, 5], 0.0, 1.0, 9);
        let table = |i: usize, x: &Tensor| tables[i].to_dtype(x.dtype());
        compare(
            &TYPES,
            &format!("{pairing:?}"),
            &[x],
            &|a| ops::rotate(&a[0], &table(0, &a[0])?, &table(1, &a[0])?, pairing),
            &|a| {
                let rows = a[0].transpose(1, 2)?;
                let turned = on(&rows).rotate(&table(0, &rows)?, &table(1, &rows)?, pairing)?;
                turned.tensor()?.transpose(1, 2)
            },
        );
    }
}

#[test]
fn attention_agrees_whatever_is_seen_added_capped_or_dropped() {
    let (batch, queries, keys) = (2, 5, 7);
    let marks = [[1u8, 1, 0, 1, 1, 0, 1], [0, 0, 0, 0, 0, 0, 0]];
    let keep = Tensor::new(&marks, &Device::Cpu).unwrap();
    let dropped: Vec<u8> = (0..batch * 4 * queries * keys)
        .map(|i| u8::from(i % 3 != 0))
        .collect();
    let dropped = Tensor::from_vec(dropped, (batch, 4, queries, keys), &Device::Cpu).unwrap();
    let mut cases = Vec::new();
    for keep in [None, Some(&keep)] {
        for visibility in [Visibility::Bidirectional, Visibility::Causal] {
            for window in [None, Some(1), Some(2)] {
                cases.push(Visible {
                    keep,
                    on_host: keep,
                    visibility,
                    window,
                    first_query: 2,
                });
            }
        }
    }
    // Four heads share two key/value heads, with 3 columns each; biases with two shapes, and one by distance.
    let vars = [
        random(&[batch, queries, 12], 0.0, 1.0, 1),
        random(&[batch, keys, 6], 0.0, 1.0, 2),
        random(&[batch, keys, 6], 0.0, 1.0, 3),
        random(&[4, 1, keys], 0.0, 1.0, 4),
        random(&[batch, 1, queries, keys], 0.0, 1.0, 5),
        random(&[4, queries + keys - 1], 0.0, 1.0, 7),
    ];
    let sinks = random(&[4], 0.5, 1.0, 6);
    let constants = Constants::default();
    for (i, visible) in cases.iter().enumerate() {
        let (n_biases, soft_cap) = (i % 4, (i % 2 == 1).then_some(1.5));
        let dropout = (i % 4 > 1).then_some((&dropped, 0.3));
        let n_sinks = usize::from(i % 5 < 2);
        let vars: Vec<Var> = vars[..3 + n_biases]
            .iter()
            .chain([&sinks][..n_sinks].iter().copied())
            .cloned()
            .collect();
        let biases = 3..3 + n_biases;
        compare(
            &TYPES[..2],
            &format!(
                "{visible:?} {n_biases} {soft_cap:?} {} {n_sinks}",
                dropout.is_some()
            ),
            &vars,
            &|a| {
                let query = Value::of(&a[0])?;
                let (key, value) = (query.beside(&a[1])?, query.beside(&a[2])?);
                let of_scores = biases_of(&a[biases.clone()]);
                let mixing = Mixing {
                    sinks: a.get(biases.end),
                    ..mixing(&of_scores, visible, soft_cap, dropout, &constants)
                };
                query.attend(&key, &value, &mixing)?.tensor()
            },
            &|a| {
                let query = on(&a[0]);
                let (key, value) = (query.beside(&a[1])?, query.beside(&a[2])?);
                let of_scores = biases_of(&a[biases.clone()]);
                let mixing = Mixing {
                    sinks: a.get(biases.end),
                    ..mixing(&of_scores, visible, soft_cap, dropout, &constants)
                };
                query.attend(&key, &value, &mixing)?.tensor()
            },
        );
    }
}

/// Returns the biases; those of rank 2 are by distance.
fn biases_of(tensors: &[Tensor]) -> Vec<BiasTensor> {
    let bias = |tensor: &Tensor| match tensor.rank() {
        2 => BiasTensor::by_distance(tensor.clone()),
        _ => BiasTensor::by_score(tensor.clone()),
    };
    tensors.iter().map(bias).collect()
}

fn mixing<'a>(
    biases: &'a [BiasTensor],
    visible: &'a Visible<'a>,
    soft_cap: Option<f64>,
    dropout: Option<(&'a Tensor, f64)>,
    constants: &'a Constants,
) -> Mixing<'a> {
    Mixing {
        batch: 2,
        queries: 5,
        keys: 7,
        n_heads: 4,
        n_kv_heads: 2,
        scale: 0.7,
        soft_cap,
        biases,
        relative: None,
        sinks: None,
        has_mask: false,
        visible,
        constants,
        dropout,
    }
}

#[test]
fn joined_heads_agree_and_are_both_one_after_the_other() {
    let types = &TYPES[..2];
    for heads in [1, 3] {
        let vars = [
            random(&[4, 3, 7], 0.0, 1.0, 1),
            random(&[4, heads, 2], 0.0, 1.0, 2),
        ];
        // Some columns in each.
        let join = |x: Value, other: Value| x.columns(1..6).joined(&other)?.tensor();
        let fused = |a: &[Tensor]| {
            let x = Value::of(&a[0])?;
            let other = x.beside(&a[1])?;
            join(x, other)
        };
        let composed = |a: &[Tensor]| {
            let x = on(&a[0]);
            let other = x.beside(&a[1])?;
            join(x, other)
        };
        compare(types, &format!("{heads} heads"), &vars, &fused, &composed);
        let args = [vars[0].as_tensor(), vars[1].as_tensor()];
        let shared = args[1].broadcast_as((4, 3, 2)).unwrap();
        let expected = Tensor::cat(&[args[0].narrow(2, 1, 5).unwrap(), shared], 2).unwrap();
        let found = fused(&args.map(Tensor::clone)).unwrap();
        assert_eq!(numbers(&found), numbers(&expected));
    }
}

#[test]
fn the_largest_of_each_row_agree() {
    for share in [0.3, 0.95] {
        // A row with equal elements has deviation 0.
        let x = [random(&[5, 33], 0.4, 2.0, 7), random(&[5, 1], 0.4, 1.0, 8)];
        let x = x.map(|x| Var::from_tensor(&x.broadcast_as((5, 33)).unwrap()).unwrap());
        for x in x {
            let fused = |a: &[Tensor]| Value::of(&a[0])?.largest(share)?.tensor();
            let composed = |a: &[Tensor]| on(&a[0]).largest(share)?.tensor();
            compare(&TYPES, "largest", &[x], &fused, &composed);
        }
    }
}

#[test]
fn means_of_products_agree_and_columns_multiply_some_columns() {
    let shapes = [[4, 9], [4, 7], [4, 3]];
    let vars = [0, 1, 2].map(|i| random(&shapes[i], 0.3, 1.0, i as u64));
    // Some columns in each.
    let means = |x: Value, other: Value, factors: Value| {
        let (x, other) = (x.columns(1..6), other.columns(2..7));
        let means = x.mean_products(&other)?;
        let x = x.times_column(&factors.columns(1..2))?;
        x.times_column(&means)?.tensor()
    };
    let fused = |a: &[Tensor]| {
        let x = Value::of(&a[0])?;
        let (other, factors) = (x.beside(&a[1])?, x.beside(&a[2])?);
        means(x, other, factors)
    };
    let composed = |a: &[Tensor]| {
        let x = on(&a[0]);
        let (other, factors) = (x.beside(&a[1])?, x.beside(&a[2])?);
        means(x, other, factors)
    };
    compare(&TYPES, "means", &vars, &fused, &composed);
    let part = |i: usize, at, n| vars[i].narrow(1, at, n).unwrap();
    let x = part(0, 1, 5);
    let means = (&x * part(1, 2, 5)).unwrap().mean_keepdim(1).unwrap();
    let expected = x.broadcast_mul(&(means * part(2, 1, 1)).unwrap()).unwrap();
    let found = fused(&vars.map(|var| var.as_tensor().clone())).unwrap();
    for (found, expected) in numbers(&found).iter().zip(numbers(&expected)) {
        assert!((found - expected).abs() <= 1e-14, "{found} {expected}");
    }
}

#[test]
fn scores_by_distance_agree() {
    let (batch, seq, n_rows) = (2, 5, 4);
    let rows: Vec<u32> = (0..2 * seq as u32 - 1).map(|d| (d / 2).min(3)).collect();
    let (constants, visible) = (Constants::default(), Visible::default());
    // Queries, keys, values and gates are columns in one value, as after a fused projection.
    let vars = [
        random(&[batch, seq, 21], 0.0, 1.0, 1),
        random(&[n_rows, 6], 0.0, 1.0, 2),
        random(&[n_rows, 6], 0.0, 1.0, 3),
    ];
    // Each of three heads has two columns of a table, or one.
    type Of = fn(Value) -> Content;
    let attended = |all: Value, tables: &[Tensor], of: &[Of]| {
        let terms = of.iter().zip(tables).map(|(of, table)| Term {
            content: of(all.columns(18..21)),
            table: all.beside(table).unwrap(),
        });
        let relative = Relative {
            terms: &terms.collect::<Vec<_>>(),
            rows: &rows,
            scale: 0.6,
            name: "of a test",
        };
        let mixing = Mixing {
            keys: seq,
            n_heads: 3,
            n_kv_heads: 3,
            relative: Some(relative),
            ..mixing(&[], &visible, None, None, &constants)
        };
        let [query, key, value] = [0, 6, 12].map(|first| all.columns(first..first + 6));
        query.attend(&key, &value, &mixing)?.tensor()
    };
    let (queries, keys): (Of, Of) = (|_| Content::Queries, |_| Content::Keys);
    let narrow = random(&[n_rows, 3], 0.0, 1.0, 4);
    let [all, wide, other] = &vars;
    let cases: [(Vec<&Var>, &[Of]); 4] = [
        (vec![all, wide, other], &[queries, keys]),
        (vec![all, wide], &[queries]),
        (vec![all, wide], &[keys]),
        (vec![all, &narrow, wide], &[Content::OfQueries, keys]),
    ];
    for (i, (vars, of)) in cases.into_iter().enumerate() {
        let vars: Vec<Var> = vars.into_iter().cloned().collect();
        compare(
            &TYPES[..2],
            &format!("terms {i}"),
            &vars,
            &|a| attended(Value::of(&a[0])?, &a[1..], of),
            &|a| attended(on(&a[0]), &a[1..], of),
        );
    }
}

#[test]
fn a_row_of_minus_infinity_is_zero_with_a_finite_gradient() {
    let x = Var::new(
        &[[f64::NEG_INFINITY; 3], [0.0, 1.0, f64::NEG_INFINITY]],
        &Device::Cpu,
    )
    .unwrap();
    let y = on(&x).softmax(SoftmaxInput::Any).unwrap().tensor().unwrap();
    assert_eq!(numbers(&y)[..3], [0.0; 3]);
    let dx = y.sqr().unwrap().sum_all().unwrap().backward().unwrap();
    let dx = numbers(dx.get(&x).unwrap());
    assert!(
        dx.iter().all(|v| v.is_finite()) && dx[..3] == [0.0; 3],
        "{dx:?}"
    );
}

#[test]
fn bounds_and_offsets_agree() {
    let x = random(&[3, 9], 0.0, 2.0, 6);
    for bounds in [[-0.7, 1.2], [f64::NEG_INFINITY, 0.4]] {
        compare(
            &TYPES,
            &format!("{bounds:?}"),
            slice::from_ref(&x),
            &|a| Value::of(&a[0])?.clamp(bounds)?.shift(1.3)?.tensor(),
            &|a| on(&a[0]).clamp(bounds)?.shift(1.3)?.tensor(),
        );
    }
}

#[test]
fn dropout_agrees_to_the_bit() {
    let keep: Vec<u8> = (0..60).map(|i| u8::from(i % 3 != 0)).collect();
    let keep = Tensor::from_vec(keep, (4, 15), &Device::Cpu).unwrap();
    let x = random(&[4, 15], 0.0, 1.0, 7);
    for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
        let x = slice::from_ref(&x);
        let fused = value_and_gradients(x, dtype, &|a| ops::dropout(&a[0], &keep, 0.3));
        let composed = value_and_gradients(x, dtype, &|a| on(&a[0]).dropout(&keep, 0.3)?.tensor());
        let (fused, composed) = (fused.unwrap(), composed.unwrap());
        assert!(!fused.is_empty());
        for (a, b) in fused.iter().zip(&composed) {
            assert_eq!(numbers(a), numbers(b));
        }
    }
}
