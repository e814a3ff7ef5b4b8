//! A step of training that cannot be meant is refused before anything moves, and the message names what is wrong.

use candle_blocks::{
    candle_core::{DType, Tensor, Var},
    candle_nn::Optimizer,
    train::{AdamW, AdamWConfig, Gradients, ParameterGroup},
};

use crate::{
    device::device,
    message::message,
    numbers::{bits, numbers},
    said::assert_says,
};

fn variable(values: &[f32]) -> Var {
    Var::new(values, &device()).unwrap()
}

fn optimiser(parameters: &[(String, Var)]) -> AdamW {
    let group = ParameterGroup::new(parameters.to_vec(), 0.1);
    AdamW::new([group], AdamWConfig::default()).unwrap()
}

/// Returns the gradients of `Σ w²/2`: the parameters themselves.
fn gradients(parameters: &[(String, Var)]) -> Gradients {
    let mut loss = Tensor::zeros((), DType::F32, &device()).unwrap();
    for (_, variable) in parameters {
        let squares = variable.sqr().unwrap().sum_all().unwrap();
        loss = (loss + (squares * 0.5).unwrap()).unwrap();
    }
    Gradients::backward(parameters, &loss).unwrap()
}

#[test]
fn a_learning_rate_or_factor_that_is_no_size_of_a_step_is_refused() {
    let parameters = vec![("w".to_string(), variable(&[1., -2.]))];
    let before = bits(&parameters[0].1);
    for wrong in [f64::NAN, f64::INFINITY, -1.0] {
        let mut optimizer = optimiser(&parameters);
        let by_factor = optimizer.update(&gradients(&parameters), wrong);
        assert_says(message(by_factor), &["learning rate", &wrong.to_string()]);
        optimizer.set_learning_rate(wrong);
        let by_rate = optimizer.update(&gradients(&parameters), 1.0);
        assert_says(message(by_rate), &["learning rate", &wrong.to_string()]);
        assert_eq!(optimizer.n_updates(), 0);
    }
    for wrong in [f64::NAN, f64::INFINITY] {
        let mut scaled = gradients(&parameters);
        scaled.scale(wrong);
        let refused = optimiser(&parameters).update(&scaled, 1.0);
        assert_says(message(refused), &["gradients", &wrong.to_string()]);
        assert_says(message(scaled.clip_norm(1.0)), &["gradients"]);
    }
    assert_eq!(bits(&parameters[0].1), before);
}

/// The second gradient does not fit: the first parameter must not change before that is found.
#[test]
fn a_gradient_of_another_shape_or_type_is_refused_before_any_parameter_moves() {
    let named = |b: Var| vec![("a".to_string(), variable(&[1.])), ("b".to_string(), b)];
    let ours = named(variable(&[1., 2.]));
    let mut optimizer = optimiser(&ours);
    let longer = named(variable(&[1., 2., 3.]));
    let half = variable(&[1., 2.]).to_dtype(DType::F16).unwrap();
    let half = vec![("b".to_string(), Var::from_tensor(&half).unwrap())];
    let of_half = half[0].1.sqr().unwrap().sum_all().unwrap();
    let mut mixed = gradients(&ours[..1]);
    mixed
        .accumulate(Gradients::backward(&half, &of_half).unwrap())
        .unwrap();
    for (wrong, said) in [(gradients(&longer), "[3]"), (mixed, "F16")] {
        let before = bits(&ours[0].1);
        let refused = message(optimizer.update(&wrong, 1.0));
        assert!(refused.starts_with("b: "), "{refused}");
        assert_says(refused, &[said, "[2]"]);
        assert_eq!(bits(&ours[0].1), before);
        assert_eq!(optimizer.n_updates(), 0);
    }
}

#[test]
fn gradients_scaled_to_nothing_can_be_added_to() {
    let parameters = vec![("w".to_string(), variable(&[3., -4.]))];
    let mut sum = gradients(&parameters);
    sum.scale(0.0);
    sum.accumulate(gradients(&parameters)).unwrap();
    sum.scale(2.0);
    assert_eq!(sum.norm().unwrap(), 10.0);
    let sum = sum.get("w").unwrap().unwrap();
    assert_eq!(numbers(&sum), [6.0, -8.0]);
}
