//! The promises of `candle_blocks::ops`: gradients of every argument, layouts, types, errors.

mod common;

use std::slice;

use candle_blocks::{
    Activation, Attention, AttentionConfig, Linear, NormConfig, NormWeight, QueryKeyValue,
    RotaryPairing, Visibility, ops, ops::Visible,
};
use candle_core::{DType, Device, Result, Tensor, Var};
use common::{computable, device, has_f64, left_out, numbers};

/// Numbers without a pattern, of unit size, in f64.
fn random(shape: &[usize], seed: u64) -> Tensor {
    random_in(DType::F64, shape, seed)
}

fn random_in(dtype: DType, shape: &[usize], seed: u64) -> Tensor {
    let n: usize = shape.iter().product();
    let values: Vec<f64> = (0..n as u64)
        .map(|i| {
            let mut z = (i + 1000 * seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z >> 11) as f64 / (1u64 << 53) as f64 - 0.5) * 3.4
        })
        .collect();
    let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
    tensor
        .to_dtype(dtype)
        .unwrap()
        .to_device(&device())
        .unwrap()
}

type Function<'a> = &'a dyn Fn(&[Tensor]) -> Result<Tensor>;

/// `Σ c · f(args)` with a cotangent `c` that no two elements share.
fn loss(f: Function, args: &[Tensor]) -> Result<Tensor> {
    let y = f(args)?;
    (&y * random_in(y.dtype(), y.dims(), 77))?.sum_all()
}

/// Compares the gradient of every argument with central differences in f64.
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

/// The function itself, and behind and before views of every kind.
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

#[test]
fn targets_that_do_not_fit_their_logits_are_named() {
    let logits = random_in(DType::F32, &[2, 3], 1);
    let refused = |targets: Tensor, words: &[&str]| {
        let text = ops::cross_entropy(&logits, &targets)
            .unwrap_err()
            .to_string();
        for word in words {
            assert!(text.contains(word), "{text:?} does not say {word:?}");
        }
    };
    let targets = |of: &[i64]| Tensor::new(of, &device()).unwrap();
    refused(targets(&[0, 3]), &["target 1 is 3", "below 3"]);
    refused(targets(&[-1, 0]), &["target 0 is -1", "-100"]);
    refused(targets(&[-100, -100]), &["all 2 are -100"]);
    refused(targets(&[0, 1, 2]), &["[3]", "[2]"]);
    let floats = Tensor::new(&[0f32, 1.], &device()).unwrap();
    refused(floats, &["F32", "expected U32"]);
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

/// Products of queries and keys and of weights and values, soft cap, window and shared heads between them.
#[test]
fn attention_gradients_equal_central_differences_of_every_parameter() {
    if !has_f64("attention's central differences") {
        return;
    }
    let config = AttentionConfig::with_head_dim(5, 4, 2)
        .with_kv_heads(2)
        .causal()
        .with_window(Some(2))
        .with_soft_cap(Some(3.0));
    let args = [
        random(&[1, 3, 5], 1),
        random(&[8, 5], 2),
        random(&[4, 5], 3),
        random(&[4, 5], 4),
        random(&[5, 8], 5),
    ];
    check_gradients("attention", &args, &|a| {
        let linear = |weight: &Tensor| Linear::from_parts(weight.clone(), None);
        let projections = QueryKeyValue::Separate {
            query: linear(&a[1])?,
            key: linear(&a[2])?,
            value: linear(&a[3])?,
        };
        Attention::from_parts(projections, linear(&a[4])?, config.clone())?.forward(&a[0])
    });
}

#[test]
fn softmax_gradients_equal_central_differences_for_every_view() {
    if !has_f64("softmax's central differences") {
        return;
    }
    check_gradients_of_views("softmax", &|x| ops::softmax(x));
    let keep = Tensor::new(&[[1u8, 1, 0, 1, 1], [0, 0, 0, 0, 0]], &device()).unwrap();
    for visibility in [Visibility::Bidirectional, Visibility::Causal] {
        let visible = Visible {
            keep: Some(&keep),
            visibility,
            window: Some(3),
            first_query: 1,
        };
        check_gradients("attention", &[random(&[2, 2, 4, 5], 1)], &|a| {
            ops::attention_softmax(&a[0], &visible)
        });
        check_gradients("attention, transposed", &[random(&[2, 2, 5, 4], 1)], &|a| {
            ops::attention_softmax(&a[0].transpose(2, 3)?, &visible)
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
fn linear_agrees_with_candle_and_so_do_its_gradients() {
    if !has_f64("a linear map's agreement with candle's") {
        return;
    }
    let run = |f: Function| {
        let args = [
            random(&[2, 37, 150], 1),
            random(&[70, 150], 2),
            random(&[70], 3),
        ];
        let vars = args.map(|a| Var::from_tensor(&a).unwrap());
        let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
        let y = f(&tensors).unwrap();
        let grads = loss(f, &tensors).unwrap().backward().unwrap();
        let gradients = vars.iter().flat_map(|v| numbers(grads.get(v).unwrap()));
        numbers(&y)
            .into_iter()
            .chain(gradients)
            .collect::<Vec<f64>>()
    };
    let ours = run(&|a| ops::linear(&a[0], &a[1], Some(&a[2])));
    let candle = run(&|a| {
        a[0].reshape((74, 150))?
            .matmul(&a[1].t()?)?
            .broadcast_add(&a[2])?
            .reshape((2, 37, 70))
    });
    assert_eq!(ours.len(), candle.len());
    // Sums of up to 150 terms of some units: two orders of addition differ by some roundings of each.
    let allowed = 150.0 * f64::EPSILON * 10.0;
    for (i, (ours, candle)) in ours.iter().zip(&candle).enumerate() {
        assert!(
            (ours - candle).abs() <= allowed,
            "{i}: {ours}, candle has {candle}"
        );
    }
}

#[test]
fn linear_computes_no_gradient_that_nobody_asks_for() {
    let of = |shape: &[usize], seed| random_in(DType::F32, shape, seed);
    let (x, weight, bias) = (of(&[3, 4], 1), of(&[5, 4], 2), of(&[5], 3));
    let var = Var::from_tensor(&x).unwrap();
    let y = ops::linear(&var, &weight, Some(&bias)).unwrap();
    let grads = y.sum_all().unwrap().backward().unwrap();
    assert!(grads.get(&var).is_some());
    assert!(grads.get(&weight).is_none() && grads.get(&bias).is_none());
    let var = Var::from_tensor(&bias).unwrap();
    let y = ops::linear(&x, &weight, Some(&var)).unwrap();
    let grads = y.sum_all().unwrap().backward().unwrap();
    assert_eq!(numbers(grads.get(&var).unwrap()), [3.0; 5]);
    assert!(grads.get(&x).is_none() && grads.get(&weight).is_none());
}

#[test]
fn linear_of_views_ranks_and_rows_alone_has_the_bits_of_the_whole() {
    if !device().is_cpu() {
        return left_out("the same bits for every view and batch are promised on the CPU");
    }
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let of = |shape: &[usize], seed| random_in(dtype, shape, seed);
        let (x, weight, bias) = (of(&[6, 5, 200], 1), of(&[70, 200], 2), of(&[70], 3));
        let y = ops::linear(&x, &weight, Some(&bias)).unwrap();
        assert_eq!((y.dims(), y.dtype()), (&[6, 5, 70][..], dtype));
        let rows = numbers(&y);
        let strided = x.transpose(0, 1).unwrap().contiguous().unwrap();
        let strided = strided.transpose(0, 1).unwrap();
        let turned = weight.t().unwrap().contiguous().unwrap();
        let turned = turned.t().unwrap();
        for (x, weight) in [(&strided, &weight), (&x, &turned), (&strided, &turned)] {
            assert!(!x.is_contiguous() || !weight.is_contiguous());
            assert_eq!(numbers(&ops::linear(x, weight, Some(&bias)).unwrap()), rows);
        }
        for (i, expected) in rows.chunks_exact(70).enumerate() {
            let row = x.get(i / 5).unwrap().get(i % 5).unwrap();
            assert_eq!(
                numbers(&ops::linear(&row, &weight, Some(&bias)).unwrap()),
                expected
            );
        }
    }
}

#[test]
fn linear_over_nothing_is_the_bias_and_of_nothing_is_empty() {
    if !device().is_cpu() {
        return left_out("products over nothing: candle's own have none");
    }
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        for (rows, d_in, d_out) in [(2, 0, 3), (0, 4, 3), (2, 4, 0), (0, 0, 0)] {
            let var =
                |shape: &[usize], seed| Var::from_tensor(&random_in(dtype, shape, seed)).unwrap();
            let (x, weight) = (var(&[rows, 2, d_in], 1), var(&[d_out, d_in], 2));
            let bias = var(&[d_out], 3);
            let y = ops::linear(&x, &weight, Some(&bias)).unwrap();
            assert_eq!((y.dims(), y.dtype()), (&[rows, 2, d_out][..], dtype));
            if d_in == 0 {
                let expected = numbers(&bias).repeat(rows * 2);
                assert_eq!(numbers(&y), expected);
                let zeros = ops::linear(&x, &weight, None).unwrap();
                assert!(numbers(&zeros).into_iter().all(|y| y == 0.0));
            }
            let grads = y.sum_all().unwrap().backward().unwrap();
            for var in [&x, &weight, &bias] {
                let grad = grads.get(var).unwrap();
                assert_eq!((grad.dims(), grad.dtype()), (var.dims(), dtype));
            }
            assert_eq!(
                numbers(grads.get(&bias).unwrap()),
                vec![2.0 * rows as f64; d_out]
            );
        }
    }
}

#[test]
fn an_inner_node_in_every_argument_does_not_break_the_graph() {
    // candle panics where a custom op withholds the gradient of a tracked argument.
    let var = Var::from_tensor(&random_in(DType::F32, &[4], 1)).unwrap();
    let config = NormConfig::layer_norm(4, 1e-5);
    let inner = |seed: f64| (var.as_tensor() + seed).unwrap();
    let y = ops::norm(&inner(0.1), &inner(0.2), Some(&inner(0.3)), &config).unwrap();
    let y = ops::activate(&y, Activation::Gelu).unwrap();
    let weight = inner(0.4)
        .reshape((1, 4))
        .unwrap()
        .broadcast_as((4, 4))
        .unwrap();
    let y = ops::linear(&y, &weight, Some(&inner(0.5))).unwrap();
    let y = ops::softmax(&y).unwrap().sqr().unwrap().sum_all().unwrap();
    assert!(
        numbers(y.backward().unwrap().get(&var).unwrap())
            .iter()
            .all(|g| g.is_finite())
    );
}

#[test]
fn a_view_gives_the_bits_of_its_copy() {
    let x = random_in(DType::F32, &[5, 6, 7], 1);
    let config = NormConfig::layer_norm(5, 1e-5).with_bias(false);
    let weight = random_in(DType::F32, &[5], 2);
    let view = x.transpose(0, 2).unwrap().narrow(0, 2, 3).unwrap();
    let values: Vec<f32> = numbers(&view).into_iter().map(|v| v as f32).collect();
    let copy = Tensor::from_vec(values, view.shape(), &device()).unwrap();
    for f in [
        &(|x: &Tensor| ops::norm(x, &weight, None, &config)) as &dyn Fn(&Tensor) -> Result<Tensor>,
        &|x| ops::activate(x, Activation::Silu),
        &|x| ops::softmax(x),
    ] {
        assert_eq!(numbers(&f(&view).unwrap()), numbers(&f(&copy).unwrap()));
    }
}

#[test]
fn every_rank_and_type_and_empty_inputs_keep_shape_and_type() {
    let config = NormConfig::rms_norm(3, 1e-6);
    let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16];
    for dtype in computable(dtypes, "shapes and types in f64") {
        for shape in [
            &[3][..],
            &[2, 3],
            &[2, 1, 3],
            &[2, 1, 4, 3],
            &[0, 3],
            &[2, 0, 3],
        ] {
            if shape.contains(&0) && !device().is_cpu() {
                left_out(&format!(
                    "gradients of {shape:?}: candle's own have none of nothing"
                ));
                continue;
            }
            let x = Var::from_tensor(&random_in(dtype, shape, 1)).unwrap();
            let weight = Var::from_tensor(&random_in(dtype, &[3], 2)).unwrap();
            let keep = Tensor::ones(shape, DType::U8, &device()).unwrap();
            let y = ops::norm(&x, &weight, None, &config).unwrap();
            let y = ops::activate(&y, Activation::GeluTanh).unwrap();
            let y = ops::dropout(&y, &keep, 0.5).unwrap();
            let y = ops::softmax(&y).unwrap();
            assert_eq!((y.dims(), y.dtype()), (shape, dtype));
            let grads = y.sum_all().unwrap().backward().unwrap();
            for var in [&x, &weight] {
                let grad = grads.get(var);
                let grad = grad.unwrap_or_else(|| panic!("{dtype:?} {shape:?}"));
                assert_eq!((grad.dims(), grad.dtype()), (var.dims(), dtype));
            }
        }
    }
    let scalar = Tensor::new(1.0f32, &device()).unwrap();
    assert_eq!(
        numbers(&ops::activate(&scalar, Activation::Relu).unwrap()),
        [1.0]
    );
}

#[test]
fn causal_attention_from_a_cache_has_the_bits_of_the_whole() {
    let scores = random_in(DType::F32, &[2, 3, 8, 8], 1);
    let visible = |first_query| Visible {
        visibility: Visibility::Causal,
        first_query,
        ..Visible::default()
    };
    let whole = ops::attention_softmax(&scores, &visible(0)).unwrap();
    for query in 0..8 {
        let row = scores
            .narrow(2, query, 1)
            .unwrap()
            .narrow(3, 0, query + 1)
            .unwrap();
        let cached = ops::attention_softmax(&row, &visible(query)).unwrap();
        let expected = whole
            .narrow(2, query, 1)
            .unwrap()
            .narrow(3, 0, query + 1)
            .unwrap();
        assert_eq!(numbers(&cached), numbers(&expected));
    }
}

#[test]
fn dropout_divides_as_numpy_does() {
    if !has_f64("dropout's bits in f64") {
        return;
    }
    let x = random(&[64], 1);
    let keep = Tensor::ones(64, DType::U8, &device()).unwrap();
    for p in [0.0, 0.1, 0.3, 0.5] {
        let expected: Vec<f64> = numbers(&x).iter().map(|x| x * 1.0 / (1.0 - p)).collect();
        assert_eq!(numbers(&ops::dropout(&x, &keep, p).unwrap()), expected);
    }
}

#[test]
fn errors_name_the_argument_and_what_was_expected() {
    let device = &device();
    let x = Tensor::ones((2, 4), DType::F32, device).unwrap();
    let weight = Tensor::ones(4, DType::F32, device).unwrap();
    let config = NormConfig::layer_norm(4, 1e-5).with_bias(false);
    let integers = Tensor::ones((2, 4), DType::U32, device).unwrap();
    let half = weight.to_dtype(DType::BF16).unwrap();
    let short = Tensor::ones(3, DType::F32, device).unwrap();
    let keep = Tensor::ones((2, 4), DType::U8, device).unwrap();
    let scores = Tensor::ones((2, 1, 3, 5), DType::F32, device).unwrap();
    let visible = Visible {
        keep: Some(&keep),
        ..Visible::default()
    };
    for (result, parts) in [
        (
            ops::norm(&integers, &weight, None, &config),
            ["input", "U32", "F32"],
        ),
        (
            ops::norm(&x, &half, None, &config),
            ["weight", "BF16", "F32"],
        ),
        (
            ops::norm(&x, &short, None, &config),
            ["weight", "[3]", "[4]"],
        ),
        (
            ops::norm(&weight, &weight, Some(&short), &config.with_bias(true)),
            ["bias", "[3]", "[4]"],
        ),
        (
            ops::norm(&short, &weight, None, &config),
            ["input", "[3]", "4]"],
        ),
        (
            ops::norm(&x, &weight, None, &config.with_bias(true)),
            ["bias", "configuration", "none"],
        ),
        (
            ops::norm(&x, &weight, Some(&weight), &config),
            ["bias", "configuration", "none"],
        ),
        (ops::linear(&integers, &x, None), ["linear", "U32", "F32"]),
        (
            ops::linear(&x, &x.to_dtype(DType::F64).unwrap(), None),
            ["weight F64", "F32", "to_dtype"],
        ),
        (ops::linear(&short, &x, None), ["input", "[3]", "[.., 4]"]),
        (
            ops::linear(&x, &x, Some(&short)),
            ["bias", "[3]", "F32 [2]"],
        ),
        (
            ops::linear(&Tensor::new(1f32, device).unwrap(), &x, None),
            ["input", "[]", "[.., 4]"],
        ),
        (
            ops::activate(&integers, Activation::Gelu),
            ["activation", "U32", "F32"],
        ),
        (ops::softmax(&integers), ["softmax", "U32", "F32"]),
        (
            ops::softmax(&Tensor::new(1f32, device).unwrap()),
            ["softmax", "scalar", "last dimension"],
        ),
        (
            ops::attention_softmax(&x, &Visible::default()),
            ["scores", "[2, 4]", "[batch"],
        ),
        (
            ops::attention_softmax(&scores, &visible),
            ["keep", "[2, 4]", "[2, 5]"],
        ),
        (ops::dropout(&x, &x, 0.1), ["mask", "F32", "U8"]),
        (
            ops::dropout(&x, &keep.narrow(0, 0, 1).unwrap(), 0.1),
            ["mask", "[1, 4]", "[2, 4]"],
        ),
        (ops::dropout(&x, &keep, 1.0), ["p is 1", "0 <=", "< 1"]),
        (
            ops::dropout(&x, &keep, f64::NAN),
            ["p is NaN", "0 <=", "< 1"],
        ),
    ] {
        let message = result.unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}
