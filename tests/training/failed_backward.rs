//! A failed backward pass leaves no state for the next one.

use candle_blocks::{
    candle_core::{DType, Tensor, Var},
    ops,
    train::Gradients,
};

use crate::{device::device, message::message, numbers::numbers, said::assert_says};

#[test]
fn after_a_failed_backward_pass_candles_own_has_all_gradients() {
    let variable = |rows: usize| {
        let ones = Tensor::ones((rows, 2), DType::F32, &device()).unwrap();
        Var::from_tensor(&ones).unwrap()
    };
    let (x, weight) = (variable(3), variable(4));
    let parameters = vec![
        ("x".to_string(), x.clone()),
        ("weight".to_string(), weight.clone()),
    ];
    // candle computes it, and has no backward pass for strides unlike the window.
    let images = x.reshape((1, 1, 3, 2)).unwrap();
    let broken = images.avg_pool2d_with_stride((1, 1), (2, 1)).unwrap();
    let broken = broken.reshape((2, 2)).unwrap();
    let loss = |x: &Tensor| ops::linear(x, &weight, None).unwrap().sum_all().unwrap();
    let failed = message(Gradients::backward(&parameters, &loss(&broken)).map(|_| ()));
    assert_says(failed, &["avgpool2d"]);
    let store = loss(&x).backward().unwrap();
    assert_eq!(numbers(store.get(&weight).unwrap()), [3.0; 8]);
    assert_eq!(numbers(store.get(&x).unwrap()), [4.0; 6]);
    let gradients = Gradients::backward(&parameters, &loss(&x)).unwrap();
    assert_eq!(
        numbers(&gradients.get("weight").unwrap().unwrap()),
        [3.0; 8]
    );
}

#[test]
fn activations_that_were_given_back_are_missed_with_the_cure() {
    let ones = Tensor::ones((3, 2), DType::F32, &device()).unwrap();
    let weight = Var::from_tensor(&ones).unwrap();
    let parameters = vec![("weight".to_string(), weight.clone())];
    let loss = ops::linear(&ones, &weight, None)
        .unwrap()
        .sum_all()
        .unwrap();
    // Any number of times, if nothing is freed.
    for _ in 0..2 {
        let store = loss.backward().unwrap();
        assert_eq!(numbers(store.get(&weight).unwrap()), [3.0; 6]);
    }
    let gradients = Gradients::backward(&parameters, &loss).unwrap();
    assert_eq!(
        numbers(&gradients.get("weight").unwrap().unwrap()),
        [3.0; 6]
    );
    let again = message(Gradients::backward(&parameters, &loss).map(|_| ()));
    assert_says(again, &["second backward pass", "loss.backward()"]);
    assert_says(loss.backward().unwrap_err(), &["second backward pass"]);
}
