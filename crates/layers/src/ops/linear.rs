//! Linear layers, `y = x·Wᵀ + b`, with their three gradients.

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::products::{Added, Matrix, multiply, multiply_rounded};
use candle_core::{DType, Result, Tensor, bail};

use super::engine::Engine;
use super::numbers::Numbers;
use super::tape::{Reads, Taped, check_float};
use super::value::{Value, on_either};
use super::weight::Weight;
use crate::config::Precision;

const OP: &str = "linear";

/// Maps the last dimension: `torch.nn.functional.linear(x, weight, bias)`.
///
/// On the CPU the summation order is fixed: a row's bits depend only on that row, the weight, the bias and the
/// instruction set ([`super::isa`]). f16 and bf16 are widened to f32 once per call, and the result is rounded once.
///
/// # Shapes
/// `x` is `[.., d_in]` with rank 1 or more, `weight` is `[d_out, d_in]`, `bias` is `[d_out]`. The result is `[..,
/// d_out]`. All may be views. Without rows the result is empty. If `d_in` is 0, the result is the bias.
///
/// # Errors
/// If shapes or types do not match, or the environment requests an instruction set that is unknown or that this CPU
/// lacks.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    check_float(OP, x)?;
    Value::of(x)?.linear(weight, bias, None)?.tensor()
}

impl Value {
    /// Like [`linear()`], plus `residual`, which has the result's shape.
    pub fn linear(
        &self,
        weight: impl Into<Weight>,
        bias: Option<&Tensor>,
        residual: Option<&Value>,
    ) -> Result<Value> {
        let weight = weight.into();
        if let Weight::Packed(packed) = &weight {
            return self.packed_linear(packed, bias, residual);
        }
        check(self, &weight, bias)?;
        on_either!(self, x => {
            let residual = residual.map(|residual| x.on_tape(residual)).transpose()?;
            Ok(x.linear(weight, bias, residual.as_ref())?.into())
        })
    }
}

impl Taped<Cpu> {
    fn linear(
        &self,
        weight: Weight,
        bias: Option<&Tensor>,
        residual: Option<&Self>,
    ) -> Result<Self> {
        if let Some(residual) = residual
            && is_half(self.dtype())
        {
            // A half type rounds the product before the addition.
            return residual.add(&self.linear(weight, bias, None)?);
        }
        let (d_out, d_in) = weight.dims2()?;
        let x = self.whole()?;
        let weight_place = x.place_of_weight(&weight);
        let bias = bias.map(|bias| x.parameter(bias, Reads::Forward));
        let bias = bias.transpose()?;
        let residual = residual.map(Self::whole).transpose()?;
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = d_out;
        }
        if residual.as_ref().is_some_and(|r| r.dims() != dims) {
            bail!("{OP}: the residual's shape differs from {dims:?}");
        }
        let rows = x.rows();
        let multiply = match x.precision() {
            Precision::Bf16 => multiply_rounded,
            _ => multiply,
        };
        let mut y = Numbers::new(x.dtype(), rows * d_out)?;
        {
            let w_data = weight.data()?;
            let (x_data, w_data) = (x.data.read(), w_data.read());
            let bias = bias.as_ref().map(|(bias, _)| bias.read());
            let residual = residual.as_ref().map(|residual| residual.data.read());
            let added = Added {
                bias: bias.as_ref().map(|bias| bias.slice()),
                residual: residual.as_ref().map(|residual| residual.slice()),
            };
            let a = Matrix::new(x_data.slice(), (rows, d_in), (d_in, 1));
            let b = w_data.matrix((d_out, d_in)).transposed();
            multiply(x.engine(), a, b, added, y.slice_mut());
        }
        let bias_place = bias.and_then(|(_, place)| place);
        let residual_slot = residual.map(|residual| residual.slot);
        let asks = [
            x.slot.place,
            weight_place,
            bias_place,
            residual_slot.as_ref().and_then(|slot| slot.place),
        ];
        // Only the weight's gradient reads the input.
        let (data, of_x) = (weight_place.map(|_| x.data.clone()), x.slot.clone());
        // `dx = dy·W`, `dW = dyᵀ·x`, and `dy` summed over the rows. The residual's gradient is `dy`.
        Ok(x.computed((y, dims), &asks, move |pass, dy| {
            let dtype = dy.dtype();
            let dy_matrix = || Matrix::new(dy.slice(), (rows, d_out), (d_out, 1));
            if let Some(x) = &data {
                let x = x.read();
                let x = Matrix::new(x.slice(), (rows, d_in), (d_in, 1));
                let mut dweight = Numbers::new(dtype, d_out * d_in)?;
                let a = dy_matrix().transposed();
                multiply(pass.engine, a, x, Added::default(), dweight.slice_mut());
                pass.add_parameter(weight_place, dweight)?;
            }
            pass.add_column_sums(bias_place, &dy, d_out)?;
            if of_x.place.is_some() {
                let weight = weight.data()?;
                let weight = weight.read();
                let mut dx = Numbers::new(dtype, rows * d_in)?;
                let before = match is_half(dtype) {
                    true => None,
                    false => pass.take(&of_x),
                };
                let added = Added {
                    residual: before.as_ref().map(Numbers::slice),
                    bias: None,
                };
                let b = weight.matrix((d_out, d_in));
                multiply(pass.engine, dy_matrix(), b, added, dx.slice_mut());
                pass.add(&of_x, dx)?;
            }
            match &residual_slot {
                Some(slot) => pass.add(slot, dy),
                None => Ok(()),
            }
        }))
    }
}

impl<E: Engine> Taped<E> {
    /// Returns the place for the gradient of a weight that multiplies this value. In the backward pass, only the value's
    /// own gradient reads the weight.
    pub(super) fn place_of_weight(&self, weight: &Weight) -> Option<usize> {
        let reads = match self.slot.place {
            Some(_) => Reads::Both,
            None => Reads::Forward,
        };
        self.place(weight.dense()?, reads)
    }
}

pub(super) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn check(x: &Value, weight: &Weight, bias: Option<&Tensor>) -> Result<()> {
    let (d_out, d_in) = weight.dims2()?;
    if x.precision() != Precision::F32 && x.dtype() != DType::F32 {
        bail!(
            "{OP}: the input is {:?}; only products of F32 can be computed in bf16, so convert it with to_dtype, or leave out ForwardContext::with_precision",
            x.dtype()
        );
    }
    if x.dtype() != weight.dtype() {
        bail!(
            "{OP}: input is {:?}, weight {:?}; convert one with to_dtype",
            x.dtype(),
            weight.dtype()
        );
    }
    if x.dims().last() != Some(&d_in) {
        bail!(
            "{OP}: input has shape {:?}, expected [.., {d_in}] for a weight of [{d_out}, {d_in}]",
            x.dims()
        );
    }
    if let Some(bias) = bias
        && (bias.dims() != [d_out] || bias.dtype() != x.dtype())
    {
        bail!(
            "{OP}: bias is {:?} {:?}, expected {:?} [{d_out}] for a weight of [{d_out}, {d_in}]",
            bias.dtype(),
            bias.dims(),
            x.dtype()
        );
    }
    Ok(())
}
