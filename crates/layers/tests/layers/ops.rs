//! The promises of `candle_blocks::ops`: agreement with candle, layouts, dtypes, errors.

use candle_blocks::{Activation, NormConfig, ops};
use candle_core::{DType, Result, Tensor, Var};

use crate::{
    device::device,
    double::has_f64,
    message::message,
    numbers::numbers,
    random::{Function, loss, random, random_in},
    said::assert_says,
    types::computable,
    weights::left_out,
};

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
fn linear_computes_no_gradient_that_nobody_needs() {
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
        return left_out("products over nothing: candle has no sum of nothing for the loss");
    }
    let dtypes = [DType::F32, DType::F64, DType::F16, DType::BF16];
    for dtype in computable(dtypes, "products over nothing in f64") {
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
                    "gradients of {shape:?}: candle has no sum of nothing for the loss"
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
            ["bias", "configuration", "no bias"],
        ),
        (ops::linear(&integers, &x, None), ["linear", "U32", "F32"]),
        (
            ops::linear(&x, &x.to_dtype(DType::F16).unwrap(), None),
            ["weight F16", "F32", "to_dtype"],
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
        assert_says(message(result), &parts);
    }
}

#[test]
fn targets_that_do_not_fit_their_values_are_named() {
    let x = random_in(DType::F32, &[2, 3], 1);
    let refused = |target: Tensor, words: &[&str]| {
        assert_says(message(ops::mse(&x, &target)), words);
    };
    refused(x.narrow(0, 0, 1).unwrap(), &["[1, 3]", "[2, 3]"]);
    refused(x.to_dtype(DType::BF16).unwrap(), &["BF16", "F32"]);
    let none = x.narrow(0, 0, 0).unwrap();
    assert_says(message(ops::mse(&none, &none)), &["no mean"]);
}

#[test]
fn targets_that_do_not_fit_their_logits_are_named() {
    let logits = random_in(DType::F32, &[2, 3], 1);
    let refused = |targets: Tensor, words: &[&str]| {
        assert_says(message(ops::cross_entropy(&logits, &targets)), words);
    };
    let targets = |of: &[i64]| Tensor::new(of, &device()).unwrap();
    refused(targets(&[0, 3]), &["target 1 is 3", "below 3"]);
    refused(targets(&[-1, 0]), &["target 0 is -1", "-100"]);
    refused(targets(&[-100, -100]), &["all 2 are -100"]);
    refused(targets(&[0, 1, 2]), &["[3]", "[2]"]);
    let floats = Tensor::new(&[0f32, 1.], &device()).unwrap();
    refused(floats, &["F32", "expected U32"]);
}
