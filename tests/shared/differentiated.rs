//! Values with their gradients.

use candle_blocks::candle_core::{self, Tensor, Var};

/// Returns `f(inputs)` and every input's gradient for the cotangent `grad_output`.
pub fn value_and_gradients(
    inputs: &[Tensor],
    grad_output: &Tensor,
    f: impl Fn(&[Tensor]) -> candle_core::Result<Tensor>,
) -> (Tensor, Vec<Tensor>) {
    let vars: Vec<Var> = inputs
        .iter()
        .map(|t| Var::from_tensor(t).unwrap())
        .collect();
    let tracked: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let y = f(&tracked).unwrap();
    let loss = (&y * grad_output).unwrap().sum_all().unwrap();
    let gradients = loss.backward().unwrap();
    let gradient = |(i, var): (usize, &Var)| {
        let gradient = gradients.get(var).cloned();
        gradient.unwrap_or_else(|| panic!("input {i} got no gradient"))
    };
    let gradients = vars.iter().enumerate().map(gradient).collect();
    (y.detach(), gradients)
}
