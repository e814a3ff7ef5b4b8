//! The gradients of `candle_blocks::ops` for every argument, against central differences in f64.

use std::slice;

use candle_blocks::{
    Activation, Attention, AttentionConfig, NormConfig, RotaryPairing, Visibility,
    config::{AttentionBias, NormWeight},
    ops,
};
use candle_core::{DType, Result, Tensor, Var};

use crate::{
    attention_weights::{Seen, attention_weights},
    device::device,
    double::has_f64,
    numbers::numbers,
    random::{Function, loss, random, random_in},
    tensors::builder,
};

/// Compares every argument's gradient with central differences in f64.
fn check_gradients(name: &str, args: &[Tensor], f: Function) {
    let vars: Vec<Var> = args.iter().map(|a| Var::from_tensor(a).unwrap()).collect();
    let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let grads = loss(f, &tensors).unwrap().backward().unwrap();
    let step = f64::EPSILON.cbrt();
    // Truncation and rounding of the quotient are both of the order of step², times third
    // derivatives and sums of some ten.
    let allowed = 100.0 * step * step;
    for (which, var) in vars.iter().enumerate() {
        let found = grads
            .get(var)
            .unwrap_or_else(|| panic!("{name}: argument {which} has no gradient"));
        assert_eq!(found.dims(), var.dims());
        let values = numbers(&args[which]);
        for (i, found) in numbers(found).into_iter().enumerate() {
            let moved = |by: f64| {
                let mut values = values.clone();
                values[i] += by;
                let mut args = args.to_vec();
                args[which] = Tensor::from_vec(values, args[which].shape(), &device()).unwrap();
                numbers(&loss(f, &args).unwrap())[0]
            };
            let quotient = (moved(step) - moved(-step)) / (2.0 * step);
            let error = (quotient - found).abs() / found.abs().max(1.0);
            assert!(
                error <= allowed,
                "{name}, argument {which}[{i}]: {found}, measured {quotient}"
            );
        }
    }
}

/// Checks the function itself, and the function before and after every kind of view.
fn check_gradients_of_views(name: &str, f: &dyn Fn(&Tensor) -> Result<Tensor>) {
    let x = random(&[2, 3, 4], 5);
    check_gradients(name, slice::from_ref(&x), &|a| f(&a[0]));
    check_gradients(name, slice::from_ref(&x), &|a| f(&a[0].transpose(0, 2)?));
    check_gradients(name, slice::from_ref(&x), &|a| f(&a[0].narrow(2, 1, 2)?));
    check_gradients(name, &[random(&[3, 1], 6)], &|a| {
        f(&a[0].broadcast_as((2, 3, 4))?)
    });
    check_gradients(name, &[x], &|a| {
        f(&a[0].affine(0.5, 0.1)?)?.transpose(1, 2)?.exp()
    });
}

#[test]
fn norm_gradients_equal_central_differences_for_every_argument_and_view() {
    if !has_f64("a norm's central differences") {
        return;
    }
    for weight in [NormWeight::Plain, NormWeight::OnePlus] {
        for config in [NormConfig::layer_norm(4, 0.1), NormConfig::rms_norm(4, 0.1)] {
            for bias in [false, true] {
                let config = config.with_weight(weight).with_bias(bias);
                let name = format!("{config:?}");
                let mut args = vec![random(&[3, 2, 4], 1), random(&[4], 2)];
                if bias {
                    args.push(random(&[4], 3));
                }
                check_gradients(&name, &args, &|a| {
                    ops::norm(&a[0], &a[1], a.get(2), &config)
                });
                // Every argument a view of something else.
                args[0] = random(&[4, 2, 3], 4);
                args[1] = random(&[1], 5);
                check_gradients(&name, &args, &|a| {
                    let weight = a[1].broadcast_as(4)?;
                    ops::norm(&a[0].transpose(0, 2)?, &weight, a.get(2), &config)
                });
            }
        }
    }
}

#[test]
fn activation_gradients_equal_central_differences_for_every_view() {
    if !has_f64("activations' central differences") {
        return;
    }
    for activation in Activation::all() {
        check_gradients_of_views(activation.name(), &|x| ops::activate(x, activation));
    }
}

#[test]
fn rotation_gradients_equal_central_differences_of_part_and_all_of_a_head() {
    if !has_f64("a rotation's central differences") {
        return;
    }
    let x = random(&[2, 3, 4, 6], 1); // [batch, n_heads, seq, head_dim]
    for pairing in [RotaryPairing::Halves, RotaryPairing::Interleaved] {
        for (tables, pairs) in [(1, 3), (2, 2)] {
            let angles = random(&[tables, 4, pairs], 2);
            let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
            let name = format!("{pairing:?} {pairs}");
            check_gradients(&name, slice::from_ref(&x), &|a| {
                ops::rotate(&a[0], &cos, &sin, pairing)
            });
            let turned = x.transpose(1, 2).unwrap().contiguous().unwrap();
            check_gradients(&name, &[turned], &|a| {
                ops::rotate(&a[0].transpose(1, 2)?, &cos, &sin, pairing)
            });
        }
    }
}

/// Products of queries and keys and of weights and values, with soft cap, window and shared heads between them.
#[test]
fn attention_gradients_equal_central_differences_of_every_parameter() {
    if !has_f64("attention's central differences") {
        return;
    }
    let config = AttentionConfig::with_head_dim(5, 4, 2)
        .with_kv_heads(2)
        .with_bias(AttentionBias::NONE)
        .causal()
        .with_window(Some(2));
    // In one operation, and composed of several.
    let configs = [
        config.clone(),
        config.clone().with_sinks(true),
        config.with_soft_cap(Some(3.0)),
    ];
    let args = [
        random(&[1, 3, 5], 1),
        random(&[8, 5], 2),
        random(&[4, 5], 3),
        random(&[4, 5], 4),
        random(&[5, 8], 5),
        random(&[4], 6),
    ];
    for config in configs {
        let n_args = if config.sinks { 6 } else { 5 };
        check_gradients("attention", &args[..n_args], &|a| {
            let names = ["query", "key", "value", "output", "sinks"];
            let names = names.map(|name| format!("{name}.weight"));
            Attention::new(&config, builder(names.into_iter().zip(&a[1..])))?.forward(&a[0])
        });
    }
}

#[test]
fn softmax_gradients_equal_central_differences_for_every_view() {
    if !has_f64("softmax's central differences") {
        return;
    }
    check_gradients_of_views("softmax", &|x| ops::softmax(x));
    let keep = Tensor::new(&[[1u8, 1, 0, 1, 1], [0, 0, 0, 0, 0]], &device()).unwrap();
    for visibility in [Visibility::Bidirectional, Visibility::Causal] {
        let seen = Seen {
            keep: Some(&keep),
            visibility,
            window: Some(3),
        };
        check_gradients("attention", &[random(&[2, 2, 4, 5], 1)], &|a| {
            attention_weights(&a[0], &seen)
        });
        check_gradients("attention, transposed", &[random(&[2, 2, 5, 4], 1)], &|a| {
            attention_weights(&a[0].transpose(2, 3)?, &seen)
        });
    }
}

#[test]
fn dropout_gradients_equal_central_differences_for_every_view() {
    if !has_f64("dropout's central differences") {
        return;
    }
    check_gradients_of_views("dropout", &|x| {
        let keep: Vec<u8> = (0..x.elem_count()).map(|i| u8::from(i % 3 > 0)).collect();
        ops::dropout(x, &Tensor::from_vec(keep, x.shape(), x.device())?, 0.3)
    });
}

#[test]
fn linear_gradients_equal_central_differences_for_every_argument_rank_and_view() {
    if !has_f64("a linear map's central differences") {
        return;
    }
    let weight = random(&[5, 4], 2);
    let bias = random(&[5], 3);
    for shape in [&[4][..], &[3, 4], &[2, 3, 4], &[2, 1, 3, 4]] {
        let args = [random(shape, 1), weight.clone(), bias.clone()];
        check_gradients("linear", &args, &|a| {
            ops::linear(&a[0], &a[1], Some(&a[2]))?.exp()
        });
        check_gradients("linear without bias", &args[..2], &|a| {
            ops::linear(&a[0], &a[1], None)?.exp()
        });
    }
    check_gradients_of_views("linear", &|x| {
        let width = x.dims()[x.rank() - 1];
        ops::linear(x, &random(&[5, width], 2), Some(&bias))
    });
    // Weight and bias as views: a tied embedding lies the other way.
    let args = [random(&[3, 4], 1), random(&[4, 5], 2), random(&[1], 3)];
    check_gradients("linear of views", &args, &|a| {
        let (weight, bias) = (a[1].t()?, a[2].broadcast_as(5)?);
        ops::linear(&a[0].narrow(0, 1, 2)?, &weight, Some(&bias))?.exp()
    });
    // More than a chunk of terms in each of the three products.
    let args = [
        random(&[131, 3], 1),
        random(&[130, 3], 2),
        random(&[130], 3),
    ];
    check_gradients("linear of long sums", &args, &|a| {
        ops::linear(&a[0], &a[1], Some(&a[2]))?.affine(0.01, 0.)
    });
}

#[test]
fn mse_is_candles_and_its_gradients_equal_central_differences() {
    if has_f64("the central differences of a mean of squares") {
        let args = [random(&[2, 3, 4], 1), random(&[2, 3, 4], 2)];
        check_gradients("mse", &args, &|a| ops::mse(&a[0], &a[1]));
        let args = [random(&[4, 6], 1), random(&[6, 4], 2)];
        check_gradients("mse", &args, &|a| ops::mse(&a[0].t()?, &a[1]));
    }
    // A scalar, and on several threads.
    for shape in [&[][..], &[1], &[3, 5], &[40, 7, 257]] {
        let x = Var::from_tensor(&random_in(DType::F32, shape, 3)).unwrap();
        let target = random_in(DType::F32, shape, 4);
        let ours = ops::mse(&x, &target).unwrap();
        let theirs = candle_nn::loss::mse(&x, &target).unwrap();
        let gradient = |loss: &Tensor| numbers(loss.backward().unwrap().get(&x).unwrap());
        let (value, expected) = (numbers(&ours)[0], numbers(&theirs)[0]);
        assert!(
            (value - expected).abs() <= 1e-5 * expected,
            "{value} {expected}"
        );
        for (found, expected) in gradient(&ours).into_iter().zip(gradient(&theirs)) {
            let allowed = 4.0 * f64::from(f32::EPSILON) * expected.abs();
            assert!(
                (found - expected).abs() <= allowed,
                "{shape:?}: {found} {expected}"
            );
        }
    }
}

#[test]
fn cross_entropy_is_candles_with_rows_passed_over_and_its_gradients_equal_central_differences() {
    let targets = [2i64, 0, -100, 3, 1, 1];
    let target = |of: &[i64], shape: &[usize]| Tensor::from_slice(of, shape, &device()).unwrap();
    if has_f64("cross-entropy's central differences") {
        check_gradients("cross_entropy", &[random(&[2, 3, 4], 1)], &|a| {
            ops::cross_entropy(&a[0], &target(&targets, &[2, 3]))
        });
        check_gradients("cross_entropy", &[random(&[4, 6], 2)], &|a| {
            ops::cross_entropy(&a[0].t()?, &target(&targets, &[6]))
        });
    }
    // Far apart, at every width around a vector's and of a real vocabulary, on several threads.
    for (rows, width) in [(1, 1), (3, 2), (5, 15), (4, 16), (7, 17), (400, 257)] {
        let logits = (random_in(DType::F32, &[rows, width], 3) * 30.0).unwrap();
        let logits = Var::from_tensor(&logits).unwrap();
        let classes: Vec<u32> = (0..rows).map(|i| (i * 7 % width) as u32).collect();
        let classes = Tensor::new(classes, &device()).unwrap();
        let ours = ops::cross_entropy(&logits, &classes).unwrap();
        let theirs = candle_nn::loss::cross_entropy(&logits, &classes).unwrap();
        let gradient = |loss: &Tensor| numbers(loss.backward().unwrap().get(&logits).unwrap());
        let (value, expected) = (numbers(&ours)[0], numbers(&theirs)[0]);
        assert!(
            (value - expected).abs() <= 1e-6 * expected.abs(),
            "{value} {expected}"
        );
        for (found, expected) in gradient(&ours).into_iter().zip(gradient(&theirs)) {
            let allowed = 4.0 * f64::from(f32::EPSILON) / rows as f64;
            assert!(
                (found - expected).abs() <= allowed,
                "{rows} x {width}: {found} {expected}"
            );
        }
    }
}
