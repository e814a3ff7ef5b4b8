//! Linear layers, `y = x·Wᵀ + b`.

use candle_core::{DType, Result, Tensor};

use super::{Array, Composed, Taped};
use crate::config::Precision;
use crate::ops::{tape::Reads, weight::Weight};

impl Taped<Composed> {
    pub(in crate::ops) fn linear(
        &self,
        weight: Weight,
        bias: Option<&Tensor>,
        residual: Option<&Self>,
    ) -> Result<Self> {
        let weight_place = self.place_of_weight(&weight);
        let bias_place = bias.and_then(|bias| self.place(bias, Reads::Forward));
        let mut dims = self.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = weight.dims2()?.0;
        }
        // The operand type and the result type: f32 may be multiplied in bf16.
        let dtype = self.dtype();
        let factors = match self.precision() {
            Precision::Bf16 => DType::BF16,
            _ => dtype,
        };
        let x = self.view()?.rows()?.to_dtype(factors)?;
        let factor = weight.array()?.to_dtype(factors)?;
        let mut y = x.matmul(&factor.transpose(0, 1)?)?.to_dtype(dtype)?;
        // A weight in a stored form is not kept, but dequantized again.
        let factor = weight.dense().map(|_| factor);
        if let Some(bias) = bias {
            y = y.add(&Array::of(bias))?;
        }
        // Only the weight's gradient reads the input.
        let (slot, x) = (self.slot.clone(), weight_place.map(|_| x));
        let asks = [slot.place, weight_place, bias_place];
        // `dx = dy·W`, `dW = dyᵀ·x`, and `dy` summed over the rows.
        let y = self.computed((y.reshape(&dims)?, dims), &asks, move |pass, dy| {
            let dy = dy.rows()?;
            let rounded_dy = dy.to_dtype(factors)?;
            if let Some(x) = &x {
                let dweight = rounded_dy.transpose(0, 1)?.matmul(x)?;
                pass.add_parameter(weight_place, dweight.to_dtype(dtype)?)?;
            }
            pass.add_column_sums(bias_place, || Ok(dy.clone()), dtype)?;
            if slot.place.is_none() {
                return Ok(());
            }
            let factor = match &factor {
                Some(factor) => factor.clone(),
                None => weight.array()?.to_dtype(factors)?,
            };
            pass.add(&slot, rounded_dy.matmul(&factor)?.to_dtype(dtype)?)
        });
        match residual {
            Some(residual) => residual.add(&y),
            None => Ok(y),
        }
    }
}
