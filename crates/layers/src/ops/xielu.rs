//! xIELU, an activation with trained parameters.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::rows::{ActivationFunction, Xielu, elements};
use candle_core::{DType, Device, Result, Tensor};

use super::numbers::{Numbers, widened};
use super::tape::{Reads, Taped};
use super::value::{Value, on_either};

/// xIELU's parameters, each a tensor with one element. The first two have gradients.
#[derive(Clone, Copy)]
pub(crate) struct XieluNumbers<'a> {
    /// The curvature on the positive side, before softplus.
    pub positive: &'a Tensor,
    /// The curvature on the negative side, before softplus, to which `slope` is added.
    pub negative: &'a Tensor,
    pub slope: &'a Tensor,
    pub knee: &'a Tensor,
}

impl Value {
    /// Computes `softplus(positive) · x² + slope · x` if x is positive, else `(slope + softplus(negative)) ·
    /// (exp(min(x, knee)) - 1 - x) + slope · x`.
    pub(crate) fn xielu(&self, numbers: XieluNumbers) -> Result<Value> {
        on_either!(self, x => Ok(x.xielu(numbers)?.into()))
    }
}

impl Taped<Cpu> {
    fn xielu(&self, numbers: XieluNumbers) -> Result<Self> {
        let x = self.whole()?;
        let asks = [numbers.positive, numbers.negative];
        let asks = asks.map(|number| x.place(number, Reads::Both));
        // The derivative of softplus is the sigmoid.
        let sigmoids = [scalar(numbers.positive)?, scalar(numbers.negative)?].map(sigmoid);
        let function = xielu_kernel(numbers)?;
        let kernel = ActivationFunction::Xielu(function);
        let mut y = Numbers::new(x.dtype(), x.elem_count())?;
        kernel.forward(x.engine(), x.data.read().slice(), y.slice_mut());
        let (data, slot) = (x.data.clone(), x.slot.clone());
        let places = [slot.place, asks[0], asks[1]];
        Ok(x.mapped(y, &places, move |pass, mut dy| {
            let parts = [Xielu::OF_POSITIVE, Xielu::of_negative(function.knee)];
            for ((place, part), sigmoid) in asks.into_iter().zip(parts).zip(sigmoids) {
                if place.is_none() {
                    continue;
                }
                let mut products = Numbers::new(dy.dtype(), dy.len())?;
                let (reading, part) = (data.read(), ActivationFunction::Xielu(part));
                part.forward(pass.engine, reading.slice(), products.slice_mut());
                elements::multiply(pass.engine, products.slice_mut(), dy.slice());
                let sum: f64 = widened(products.slice()).iter().sum();
                pass.add_parameter(place, Numbers::of_scalar(dy.dtype(), sum * sigmoid)?)?;
            }
            kernel.backward(pass.engine, data.read().slice(), dy.slice_mut());
            pass.add(&slot, dy)
        }))
    }
}

/// Returns the kernel for an xIELU with these parameters.
pub(crate) fn xielu_kernel(numbers: XieluNumbers) -> Result<Xielu> {
    let slope = scalar(numbers.slope)?;
    Ok(Xielu {
        positive: softplus(scalar(numbers.positive)?),
        negative: slope + softplus(scalar(numbers.negative)?),
        slope,
        knee: scalar(numbers.knee)?,
    })
}

fn scalar(tensor: &Tensor) -> Result<f64> {
    let host = tensor.detach().to_device(&Device::Cpu)?;
    host.to_dtype(DType::F64)?.reshape(())?.to_scalar()
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
