//! Mean squared error, the loss for regression and distillation.

use candle_blocks_kernels::{Cpu, rows::squared_error as kernel};
use candle_core::{Result, Tensor, bail};

use super::numbers::Numbers;
use super::tape::{Taped, check_float};
use super::value::{Value, on_either};

const OP: &str = "mse";

/// Computes the mean of `(x - target)²`: `torch.nn.functional.mse_loss(x, target)`.
///
/// On the CPU it takes one pass over both tensors on all threads, forward and backward, and keeps nothing of their
/// size. candle's own version takes six operations.
///
/// # Shapes
/// `x` and `target` have the same shape, type and device. The result is a scalar in their type.
///
/// # Errors
/// If shapes, types or devices do not match, or there are no elements.
///
/// ```
/// use candle_blocks::ops;
/// use candle_core::{Device, Tensor};
///
/// let x = Tensor::new(&[1f32, 2., 4.], &Device::Cpu)?;
/// let target = Tensor::new(&[1f32, 1., 1.], &Device::Cpu)?;
/// assert_eq!(ops::mse(&x, &target)?.to_scalar::<f32>()?, 10. / 3.);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn mse(x: &Tensor, target: &Tensor) -> Result<Tensor> {
    check_float(OP, x)?;
    if (x.dims(), x.dtype()) != (target.dims(), target.dtype()) {
        bail!(
            "{OP}: the target is {:?} of {:?}, expected {:?} of {:?} as the input",
            target.dtype(),
            target.dims(),
            x.dtype(),
            x.dims()
        );
    }
    if !x.device().same_device(target.device()) {
        let (x, target) = (x.device().location(), target.device().location());
        bail!("{OP}: the target is on {target:?}, the input on {x:?}; move it with to_device");
    }
    if x.elem_count() == 0 {
        bail!("{OP}: the batch is empty and has no mean; leave such batches out");
    }
    on_either!(Value::of(x)?, x => x.mse(&x.beside(target)?)?.finish())
}

impl Taped<Cpu> {
    fn mse(&self, target: &Self) -> Result<Self> {
        let n = self.elem_count() as f64;
        let of = [self.data.clone(), target.data.clone()];
        let sum = kernel::sum(self.engine(), of[0].read().slice(), of[1].read().slice());
        let mean = Numbers::of_scalar(self.dtype(), sum / n)?;
        let slots = [self.slot.clone(), target.slot.clone()];
        let asks = [self.slot.place, target.slot.place];
        Ok(self.computed((mean, vec![]), &asks, move |pass, dy| {
            let (x, target) = (of[0].read(), of[1].read());
            for (slot, factor) in slots.iter().zip([2.0 / n, -2.0 / n]) {
                if slot.place.is_some() {
                    let mut dx = Numbers::new(dy.dtype(), x.slice().len())?;
                    let factor = factor * dy.scalar();
                    let (x, target) = (x.slice(), target.slice());
                    kernel::gradient(pass.engine, x, target, factor, dx.slice_mut());
                    pass.add(slot, dx)?;
                }
            }
            Ok(())
        }))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};

    use super::*;
    use crate::{config::Precision, ops::Route};

    /// Other devices' operations, run on the CPU.
    #[test]
    fn the_composed_loss_and_its_gradients_are_the_kernels() {
        let numbers = |seed: f64| -> Vec<f64> {
            let number = |i| 9.0 * (f64::from(i) * 0.7 + seed).sin();
            (0..2 * 7 * 5).map(number).collect()
        };
        let [x, target] = [0.0, 0.5].map(|seed| {
            let numbers = Tensor::from_vec(numbers(seed), (2, 7, 5), &Device::Cpu).unwrap();
            Var::from_tensor(&numbers).unwrap()
        });
        let Value::Composed(composed) = Value::on(Route::Composed, Precision::F32, &x).unwrap()
        else {
            panic!("composed");
        };
        let beside = composed.beside(&target).unwrap();
        let both = [
            mse(&x, &target).unwrap(),
            composed.mse(&beside).unwrap().finish().unwrap(),
        ];
        let numbers = both.map(|loss| {
            let gradients = (&loss * 3.0).unwrap().backward().unwrap();
            let of = |var: &Var| gradients.get(var).unwrap().flatten_all().unwrap();
            let mut numbers = of(&x).to_vec1::<f64>().unwrap();
            numbers.extend(of(&target).to_vec1::<f64>().unwrap());
            numbers.push(loss.to_scalar().unwrap());
            numbers
        });
        assert_eq!(numbers[0].len(), 2 * 2 * 7 * 5 + 1);
        for (kernel, composed) in numbers[0].iter().zip(&numbers[1]) {
            assert!((kernel - composed).abs() < 1e-13, "{kernel} {composed}");
        }
    }
}
