//! `y = x·Wᵀ + b`, with what follows.

use candle_core::{DType, Result, Tensor};

use super::{Array, Composed, Taped};
use crate::config::{Activation, Precision};
use crate::ops::array::After;
use crate::ops::weight::Weight;

impl Taped<Composed> {
    pub(in crate::ops) fn linear(
        &self,
        weight: Weight,
        bias: Option<&Tensor>,
        residual: Option<&Self>,
    ) -> Result<Self> {
        let of_weight = weight.dense().and_then(|weight| self.place(weight));
        let of_bias = bias.and_then(|bias| self.place(bias));
        let mut dims = self.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = weight.dims2()?.0;
        }
        // What is multiplied, and what the results are: f32 may be multiplied in bf16.
        let dtype = self.dtype();
        let factors = match self.precision() {
            Precision::Bf16 => DType::BF16,
            _ => dtype,
        };
        let x = self.view()?.rows()?.to_dtype(factors)?;
        let factor = weight.array()?.to_dtype(factors)?;
        let bias = bias.map(Array::of);
        let of_residual = residual.map(|residual| residual.slot.clone());
        let residual = residual.map(Taped::view).transpose()?;
        let after = After {
            bias: bias.as_ref(),
            residual: residual.as_ref(),
            activation: None,
        };
        let y = match factors == dtype {
            true => product(&x, &factor, after)?,
            false => followed(x.matmul(&factor.transpose(0, 1)?)?.to_dtype(dtype)?, after)?,
        };
        let y = y.reshape(&dims)?;
        // Of a weight in another form nothing is kept: it is made again.
        let factor = weight.dense().map(|_| factor);
        // The weight's gradient alone reads the input.
        let (slot, x) = (self.slot.clone(), of_weight.map(|_| x));
        let place_of_residual = of_residual.as_ref().and_then(|slot| slot.place);
        let asks = [slot.place, of_weight, of_bias, place_of_residual];
        // `dx = dy·W`, `dW = dyᵀ·x`, and the sum of `dy` over the rows.
        Ok(self.computed((y, dims), &asks, move |pass, dy| {
            if let Some(slot) = &of_residual {
                pass.add(slot, dy.clone())?;
            }
            let dy = dy.rows()?;
            let of_dy = dy.to_dtype(factors)?;
            if let Some(x) = &x {
                let dweight = of_dy.transpose(0, 1)?.matmul(x)?;
                pass.add_parameter(of_weight, dweight.to_dtype(dtype)?)?;
            }
            pass.add_column_sums(of_bias, || Ok(dy.clone()), dtype)?;
            if slot.place.is_none() {
                return Ok(());
            }
            let factor = match &factor {
                Some(factor) => factor.clone(),
                None => weight.array()?.to_dtype(factors)?,
            };
            pass.add(&slot, of_dy.matmul(&factor)?.to_dtype(dtype)?)
        }))
    }

    /// [`Self::linear`] and the activation, where one kernel computes both, and nothing asks for the gradient, which reads what
    /// lies between.
    pub(in crate::ops) fn linear_in_one_kernel(
        &self,
        weight: &Weight,
        bias: Option<&Tensor>,
        activation: Activation,
    ) -> Result<Option<Self>> {
        let is_in_epilogue = matches!(activation, Activation::Relu | Activation::GeluTanh);
        if !is_in_epilogue || self.precision() != Precision::F32 || !self.data.is_fused() {
            return Ok(None);
        }
        let (x, factor) = (self.view()?, weight.array()?);
        if !x.has_product(&factor) {
            return Ok(None);
        }
        let parameters = [weight.dense(), bias].into_iter().flatten();
        let mut places = parameters.map(|of| self.place(of));
        if self.slot.place.is_some() || places.any(|place| place.is_some()) {
            return Ok(None);
        }
        let mut dims = self.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = weight.dims2()?.0;
        }
        let bias = bias.map(Array::of);
        let after = After {
            bias: bias.as_ref(),
            activation: Some(activation),
            residual: None,
        };
        let y = product(&x.rows()?, &factor, after)?.reshape(&dims)?;
        Ok(Some(self.computed((y, dims), &[], |_, _| Ok(()))))
    }
}

/// `after(x·Wᵀ)` of rows, in one kernel where there is one.
fn product(x: &Array, weight: &Array, after: After) -> Result<Array> {
    let composed = || followed(x.matmul(&weight.transpose(0, 1)?)?, after);
    match x.has_product(weight) {
        true => x.product(weight, after, composed),
        false => composed(),
    }
}

/// What follows a product, step by step.
fn followed(mut y: Array, after: After) -> Result<Array> {
    if let Some(bias) = after.bias {
        y = y.add(bias)?;
    }
    if let Some(residual) = after.residual {
        y = residual.add(&y.reshape(residual.dims())?)?;
    }
    match after.activation {
        Some(activation) => super::activation::activated(&y, activation),
        None => Ok(y),
    }
}
