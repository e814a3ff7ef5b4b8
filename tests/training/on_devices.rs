//! The operations that training runs on a device besides its layers, counted; on the CPU in a rehearsal
//! (`rehearsal_of_all.rs`).

use candle_blocks::{
    Parameters,
    candle_core::{DType, Tensor, Var},
    ops::{Operation, Route, recorded, route},
    train::{AdamW, AdamWConfig, Gradients, ParameterGroup},
};

use crate::{device::device, numbers::bits};

/// Returns the operations that `work` runs on the device under test, if any: none with kernels.
fn issued_by<R>(work: impl FnOnce() -> R) -> (R, Option<Vec<Operation>>) {
    let (result, issued) = recorded(work);
    if route(&device()) == Route::Kernels {
        assert_eq!(issued, []);
        return (result, None);
    }
    (result, Some(issued))
}

/// Returns `n` parameters: matrices and vectors, in f32 and bf16.
fn parameters(n: usize) -> Parameters {
    let parameter = |i: usize| {
        let dims: &[usize] = if i.is_multiple_of(2) { &[3, 4] } else { &[5] };
        let dtype = [DType::F32, DType::BF16][usize::from(i % 4 >= 2)];
        let values = Var::ones(dims, dtype, &device()).unwrap();
        (format!("p{i}"), values)
    };
    (0..n).map(parameter).collect()
}

/// Gradients that are two times the parameters.
fn gradients(of: &[(String, Var)]) -> Gradients {
    let mut loss = Tensor::zeros((), DType::F32, &device()).unwrap();
    for (_, variable) in of {
        let wide = variable.to_dtype(DType::F32).unwrap();
        loss = (loss + wide.sqr().unwrap().sum_all().unwrap()).unwrap();
    }
    Gradients::backward(of, &loss).unwrap()
}

#[test]
fn a_step_takes_four_copies_of_a_parameter_and_one_transfer() {
    /// Besides these copies: about 20 operations for each of four groups, two dtypes with and without decay.
    const CONSTANT: usize = 80;
    for n in [8, 400] {
        let all = parameters(n);
        let groups = ParameterGroup::decaying_matrices(all.clone(), 0.01);
        let mut optimizer = AdamW::new(groups, AdamWConfig::default()).unwrap();
        let mut step = |of: &[(String, Var)], most: usize| {
            let mut gradients = gradients(of);
            let (norm, issued) = issued_by(|| {
                let norm = gradients.clip_norm(0.5).unwrap();
                optimizer.update(&gradients, 1.0).unwrap();
                norm
            });
            assert!(norm > 0.5, "{norm}: nothing was clipped");
            let Some(issued) = issued else { return };
            let is_transfer = |name: &&str| ["upload", "download"].contains(name);
            let names = issued.iter().map(|operation| operation.name);
            assert_eq!(names.filter(is_transfer).collect::<Vec<_>>(), ["download"]);
            assert!(issued.len() <= most, "{n}: {} of {most}", issued.len());
        };
        let (copies, moments) = (4 * n, 2 * n);
        // Moments are put together, and stay so.
        step(&all, copies + moments + CONSTANT);
        step(&all, copies + CONSTANT);
        step(&all, copies + CONSTANT);
        // A parameter without a gradient has a step of its own from here on.
        step(&all[1..], copies + moments + CONSTANT);
        step(&all[1..], copies + CONSTANT);
        step(&all, copies + CONSTANT + 20);
    }
}

#[test]
fn factors_on_gradients_of_half_types_are_not_rounded() {
    let values: Vec<f32> = (1..100).map(|i| i as f32).collect();
    let wide = Tensor::new(values, &device()).unwrap();
    for dtype in [DType::F16, DType::BF16] {
        let values = wide.to_dtype(dtype).unwrap();
        let all = vec![("p".to_string(), Var::from_tensor(&values).unwrap())];
        let ((once, sum), issued) = issued_by(|| {
            let mut scaled = gradients(&all);
            scaled.scale(0.11);
            let once = scaled.get("p").unwrap().unwrap();
            let mut sum = gradients(&all);
            sum.accumulate(scaled).unwrap();
            (once, sum.get("p").unwrap().unwrap())
        });
        // On the CPU, candle rounds a factor to the type.
        let Some(issued) = issued else { continue };
        let rounded = (&wide * 0.22).unwrap().to_dtype(dtype).unwrap();
        assert_eq!(bits(&once), bits(&rounded));
        let twice = (&values + &values).unwrap();
        assert_eq!(bits(&sum), bits(&(twice + rounded).unwrap()));
        let names: Vec<&str> = issued.iter().map(|operation| operation.name).collect();
        let scaling = ["to_dtype", "affine", "to_dtype"];
        assert_eq!(names, [&scaling[..], &scaling, &["add"]].concat());
    }
}
