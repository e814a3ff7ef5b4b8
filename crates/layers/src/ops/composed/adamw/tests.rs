use candle_core::{Device, Var};
use half::{bf16, f16};

use super::*;
use crate::ops::{self, Route, Update};

/// Returns values without a pattern.
fn numbers(dims: &[usize], around: f64, start: usize) -> Tensor {
    let n: usize = dims.iter().product();
    let values = (0..n).map(|i| around + ((i + 1) as f64 * 0.7 + start as f64 * 1.3).sin());
    Tensor::from_vec(values.collect::<Vec<_>>(), dims, &Device::Cpu).unwrap()
}

fn values(of: &Tensor) -> Vec<f64> {
    let wide = of.to_dtype(DType::F64).unwrap();
    wide.flatten_all().unwrap().to_vec1().unwrap()
}

/// Parameters with every kind of size, some empty, and their groups.
const PARAMETERS: [(&[usize], usize); 8] = [
    (&[5, 12], 0),
    (&[0, 3], 0),
    (&[7], 1),
    (&[33, 3], 0), // more than fit one array
    (&[], 1),
    (&[12], 1),
    (&[3, 0], 1),
    (&[2, 3], 0),
];

const UPDATE: Update = Update {
    learning_rate: 0.01,
    beta1: 0.9,
    beta2: 0.99,
    eps: 1e-6,
    weight_decay: 0.0,
    step: 1,
    gradient_scale: 1.0,
};

/// The maximum element count in one array here.
const MOST: usize = 64;

/// Takes the same steps on a route, and returns parameters and moments.
fn after_steps(route: Route, dtype: DType) -> Vec<Tensor> {
    let parameters: Vec<Var> = (PARAMETERS.iter().enumerate())
        .map(|(i, (dims, _))| {
            Var::from_tensor(&numbers(dims, 0.0, i).to_dtype(dtype).unwrap()).unwrap()
        })
        .collect();
    let mut moments: Vec<Moments> = (parameters.iter())
        .map(|parameter| Moments::zeros(route, parameter).unwrap())
        .collect();
    let mut counts = vec![0; parameters.len()];
    for n in 0..6 {
        let gradients: Vec<Tensor> = (parameters.iter().enumerate())
            .map(|(i, parameter)| {
                // Not contiguous, if there are two dimensions.
                let dims: Vec<usize> = parameter.dims().iter().rev().copied().collect();
                let gradient = numbers(&dims, 0.1, 10 * n + i).to_dtype(dtype).unwrap();
                match dims.len() {
                    2 => gradient.t().unwrap(),
                    _ => gradient,
                }
            })
            .collect();
        let all: Vec<&Tensor> = gradients.iter().collect();
        let norm = match route {
            Route::Kernels => ops::sum_of_squares(&all).unwrap().sqrt(),
            Route::Composed => sum_of_squares(&all, MOST).unwrap().sqrt(),
        };
        let mut steps = Vec::new();
        for (i, moments) in moments.iter_mut().enumerate() {
            if (i, n) == (2, 3) {
                moments.leave().unwrap();
                continue;
            }
            counts[i] += 1;
            let is_decaying = PARAMETERS[i].1 == 0;
            let update = Update {
                learning_rate: if is_decaying { 0.01 } else { 0.005 },
                weight_decay: if is_decaying { 0.1 } else { 0.0 },
                step: counts[i],
                gradient_scale: 1.0 / norm,
                ..UPDATE
            };
            steps.push(ParameterStep {
                parameter: &parameters[i],
                gradient: &gradients[i],
                moments,
                update,
            });
        }
        match route {
            Route::Kernels => ops::adamw(steps).unwrap(),
            Route::Composed => {
                steps.retain(|step| step.parameter.elem_count() > 0);
                adamw(steps, MOST).unwrap();
            }
        }
    }
    let mut all = Vec::new();
    for (parameter, moments) in parameters.iter().zip(&moments) {
        all.push(parameter.as_detached_tensor());
        all.extend(moments.to_tensors(parameter).unwrap());
    }
    all
}

#[test]
fn steps_equal_the_kernels() {
    for (dtype, allowed, of_halves) in [
        (DType::F64, 1e-14, 0.0),
        (DType::F32, 1e-6, 0.0),
        // A value between two representable ones may be rounded to either.
        (DType::F16, 1e-6, f16::EPSILON.to_f64()),
        (DType::BF16, 1e-6, bf16::EPSILON.to_f64()),
    ] {
        let theirs = after_steps(Route::Kernels, dtype);
        let ours = after_steps(Route::Composed, dtype);
        let mut n_compared = 0;
        for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            assert_eq!((ours.dims(), ours.dtype()), (theirs.dims(), theirs.dtype()));
            let rounding = if i % 3 == 0 { of_halves } else { 0.0 };
            for (x, y) in values(ours).into_iter().zip(values(theirs)) {
                let allowed = allowed + rounding * y.abs();
                assert!((x - y).abs() <= allowed, "{dtype:?}, tensor {i}: {x} {y}");
                n_compared += 1;
            }
        }
        assert_eq!(n_compared, 3 * (60 + 7 + 99 + 1 + 12 + 6));
    }
}

#[test]
fn a_parameter_without_a_step_keeps_only_its_own_moments() {
    let parameters = [3, 4].map(|n| Var::zeros(n, DType::F32, &Device::Cpu).unwrap());
    let gradients = [3, 4].map(|n| numbers(&[n], 0.0, n).to_dtype(DType::F32).unwrap());
    let mut moments = [0, 1].map(|i| Moments::zeros(Route::Composed, &parameters[i]).unwrap());
    let own = moments.iter_mut().zip(&parameters).zip(&gradients);
    let steps = own.map(|((moments, parameter), gradient)| ParameterStep {
        parameter,
        gradient,
        moments,
        update: UPDATE,
    });
    adamw(steps.collect(), MOST).unwrap();
    let n_kept = |moments: &Moments| match moments {
        Moments::Shared { of, .. } => of[0].width(),
        _ => panic!("not of a device"),
    };
    assert_eq!(n_kept(&moments[1]), 7);
    let before = moments[1].to_tensors(&parameters[1]).unwrap();
    moments[1].leave().unwrap();
    assert_eq!(n_kept(&moments[1]), 4);
    let after = moments[1].to_tensors(&parameters[1]).unwrap();
    for (before, after) in before.iter().zip(&after) {
        assert_eq!(values(before), values(after));
        assert!(values(after).iter().all(|x| *x != 0.0));
    }
}

#[test]
fn squares_add_up_around_the_length_of_a_row_whatever_is_put_together() {
    let sizes = [0, 1, ROW - 1, ROW, ROW + 1, 3 * ROW + 5];
    for (dtype, allowed) in [
        (DType::F64, 1e-14),
        (DType::F32, 1e-6),
        (DType::F16, 1e-6),
        (DType::BF16, 1e-6),
    ] {
        let tensors = sizes.map(|n| numbers(&[n], 0.5, n).to_dtype(dtype).unwrap());
        let all: Vec<&Tensor> = tensors.iter().collect();
        let exact: f64 = all.iter().flat_map(|x| values(x)).map(|x| x * x).sum();
        for most in [1, 2 * ROW, usize::MAX] {
            let sum = sum_of_squares(&all, most).unwrap();
            assert!(
                (sum / exact - 1.0).abs() < allowed,
                "{dtype:?} {most}: {sum} {exact}"
            );
        }
    }
    assert_eq!(sum_of_squares(&[], MOST).unwrap(), 0.0);
}

#[test]
fn types_trained_together_have_one_sum() {
    let tensors = [DType::F64, DType::F32, DType::BF16].map(|dtype| {
        Tensor::full(3f32, 4, &Device::Cpu)
            .unwrap()
            .to_dtype(dtype)
            .unwrap()
    });
    let (sum, issued) = ops::recorded(|| sum_of_squares(&tensors.each_ref(), MOST).unwrap());
    assert_eq!(sum, 3.0 * 4.0 * 9.0);
    let downloads = issued
        .iter()
        .filter(|operation| operation.name == "download");
    assert_eq!(downloads.count(), 1);
}

#[test]
fn values_whose_squares_overflow_have_a_norm_and_only_nan_and_infinity_have_none() {
    let sum = |values: &[f32]| {
        let x = Tensor::new(values, &Device::Cpu).unwrap();
        sum_of_squares(&[&x], MOST).unwrap()
    };
    assert!((sum(&[3e30, 4e30]).sqrt() / 5e30 - 1.0).abs() < 1e-6);
    let largest = sum(&[f32::MAX; 3]).sqrt();
    assert!((largest / (3f64.sqrt() * f64::from(f32::MAX)) - 1.0).abs() < 1e-6);
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        assert!(!sum(&[1.0, bad, 1e-30]).is_finite());
    }
}
