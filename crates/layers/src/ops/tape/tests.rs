use candle_core::{Device, Var};

use super::*;
use crate::config::{Activation, NormConfig};
use crate::ops::{self, Route, Value};

/// Returns a float tensor whose elements all differ.
fn variable(dims: &[usize], salt: f64, dtype: DType) -> Var {
    let n = dims.iter().product::<usize>();
    let values: Vec<f64> = (0..n)
        .map(|i| (i as f64 * (0.7 + salt)).sin() + 0.1)
        .collect();
    let values = Tensor::from_vec(values, dims, &Device::Cpu).unwrap();
    Var::from_tensor(&values.to_dtype(dtype).unwrap()).unwrap()
}

fn values(t: &Tensor) -> Vec<f64> {
    let t = t.to_dtype(DType::F64).unwrap();
    t.flatten_all().unwrap().to_vec1().unwrap()
}

/// Returns a loss whose gradient differs for each element.
fn loss(y: &Tensor) -> Tensor {
    let weights: Vec<f64> = (0..y.elem_count())
        .map(|i| (i as f64 * 1.7).cos())
        .collect();
    let weights = Tensor::from_vec(weights, y.shape(), &Device::Cpu).unwrap();
    (y * weights.to_dtype(y.dtype()).unwrap())
        .unwrap()
        .sum_all()
        .unwrap()
}

/// A small network's variables.
struct Parts {
    x: Var,
    /// A projection to 6 columns, and one back. The first is used twice.
    weights: [Var; 2],
    bias: Var,
    gain: Var,
}

impl Parts {
    fn new(dtype: DType) -> Self {
        Self {
            x: variable(&[2, 3, 4], 0.0, dtype),
            weights: [variable(&[6, 4], 0.1, dtype), variable(&[4, 3], 0.2, dtype)],
            bias: variable(&[6], 0.3, dtype),
            gain: variable(&[4], 0.4, dtype),
        }
    }

    fn all(&self) -> [&Var; 5] {
        [
            &self.x,
            &self.weights[0],
            &self.weights[1],
            &self.bias,
            &self.gain,
        ]
    }

    /// On one tape: the input is read four times, a weight twice, and one value's columns separately.
    fn taped(&self, route: Route) -> Result<Tensor> {
        let x = Value::on(route, Precision::F32, &self.x)?;
        let normal = x.norm(&self.gain, None, &config())?;
        let once = normal.linear(self.weights[0].as_tensor(), Some(&self.bias), None)?;
        let twice = x.linear(self.weights[0].as_tensor(), None, None)?;
        let (gate, up) = (once.columns(0..3), twice.columns(3..6));
        let hidden = gate
            .gate(&up, Activation::Silu, None)?
            .add(&once.columns(3..6))?;
        let back = hidden.linear(self.weights[1].as_tensor(), None, Some(&x))?;
        back.scale(0.5)?
            .multiply_rows(&self.gain)?
            .add(&x)?
            .tensor()
    }

    fn one_by_one(&self) -> Result<Tensor> {
        let normal = ops::norm(&self.x, &self.gain, None, &config())?;
        let once = ops::linear(&normal, &self.weights[0], Some(&self.bias))?;
        let twice = ops::linear(&self.x, &self.weights[0], None)?;
        let gate = ops::activate(&once.narrow(2, 0, 3)?, Activation::Silu)?;
        let hidden = ((gate * twice.narrow(2, 3, 3)?)? + once.narrow(2, 3, 3)?)?;
        let back = (ops::linear(&hidden, &self.weights[1], None)? + self.x.as_tensor())?;
        (back * 0.5)?.broadcast_mul(&self.gain)? + self.x.as_tensor()
    }
}

fn config() -> NormConfig {
    NormConfig::layer_norm(4, 1e-5).with_bias(false)
}

#[test]
fn a_tape_gives_the_values_of_its_steps_one_by_one_and_their_gradients() {
    let types = [
        (DType::F32, f64::from(f32::EPSILON)),
        (DType::F64, f64::EPSILON),
    ];
    let both = [Route::Kernels, Route::Composed];
    for (route, (dtype, epsilon)) in both.iter().flat_map(|&route| types.map(|of| (route, of))) {
        let parts = Parts::new(dtype);
        let (taped, expected) = (parts.taped(route).unwrap(), parts.one_by_one().unwrap());
        for (a, b) in values(&taped).iter().zip(values(&expected)) {
            assert!((a - b).abs() <= 4.0 * epsilon, "{a} {b}");
        }
        let (ours, theirs) = (loss(&taped), loss(&expected).backward().unwrap());
        // Before the activations are freed.
        let directly = ours.backward().unwrap();
        let (rest, collected) = ops::collecting(|| ours.backward()).unwrap();
        for var in parts.all() {
            let expected = values(theirs.get(var).unwrap());
            // With and without candle's gradient store.
            assert!(rest.get(var).is_none());
            for found in [collected[&var.id()].tensor(), directly.get(var).unwrap()] {
                for (a, b) in values(found).iter().zip(&expected) {
                    assert!(
                        (a - b).abs() <= 100.0 * epsilon * b.abs().max(1.0),
                        "{a} {b}"
                    );
                }
            }
        }
    }
}

#[test]
fn nothing_is_recorded_of_constants() {
    let parts = Parts::new(DType::F32);
    for route in [Route::Kernels, Route::Composed] {
        let x = Value::on(route, Precision::F32, &parts.x.detach()).unwrap();
        let y = x.linear(&parts.weights[0].detach(), None, None).unwrap();
        assert!(!y.tensor().unwrap().track_op());
    }
}

#[test]
fn a_value_that_ends_a_tape_may_still_be_used_on_it() {
    let x = variable(&[2, 3], 0.0, DType::F64);
    for route in [Route::Kernels, Route::Composed] {
        let on_tape = Value::on(route, Precision::F32, &x).unwrap();
        let doubled = on_tape.scale(2.0).unwrap();
        let first = doubled.clone().tensor().unwrap();
        let second = doubled.scale(3.0).unwrap().tensor().unwrap();
        let sum = (first + second).unwrap().sum_all().unwrap();
        let gradient = sum.backward().unwrap();
        assert_eq!(values(gradient.get(&x).unwrap()), [8.0; 6]);
    }
}

#[test]
fn an_input_that_is_the_output_is_itself() {
    let x = variable(&[2, 3], 0.0, DType::F64);
    let y = Value::of(&x).unwrap().tensor().unwrap();
    let gradient = loss(&y).backward().unwrap();
    assert_eq!(gradient.get(&x).unwrap().dims(), [2, 3]);
}
