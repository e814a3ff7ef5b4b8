//! `y = x·Wᵀ + b` with a packed weight, in evaluation on the CPU.

use candle_blocks_kernels::products::Epilogue;
use candle_blocks_kernels::rows::Source;
use candle_blocks_kernels::{Slice, SliceMut};
use candle_core::{DType, Device, Result, Tensor, bail};

use super::kernels::Data;
use super::numbers::Numbers;
use super::tape::Taped;
use super::value::Value;
use super::weight::Packed;
use crate::config::Precision;

const OP: &str = "linear";

impl Value {
    /// Multiplies by a packed weight, in f32 for every input type, and adds an f32 `bias` and a `residual`.
    pub(super) fn packed_linear(
        &self,
        weight: &Packed,
        bias: Option<&Tensor>,
        residual: Option<&Self>,
    ) -> Result<Self> {
        check(self, weight)?;
        let x = match self {
            Self::Kernels(x) => x.clone(),
            Self::Composed(x) => Taped::begin(&x.clone().finish()?, Precision::F32)?,
        };
        let dtype = x.dtype();
        let y = match dtype {
            DType::F32 => multiplied(&x, weight, bias, residual)?,
            _ => {
                let x = Self::from(x).widened()?;
                let Self::Kernels(x) = x else {
                    bail!("{OP}: the input is on another device")
                };
                let y = multiplied(&x, weight, bias, None)?;
                y.to_dtype(dtype)?.added_to(residual)?
            }
        };
        match self {
            Self::Kernels(_) => Ok(y),
            Self::Composed(_) => self.beside(&y.tensor()?),
        }
    }
}

fn multiplied(
    x: &Taped<candle_blocks_kernels::Cpu>,
    Packed(weight): &Packed,
    bias: Option<&Tensor>,
    residual: Option<&Value>,
) -> Result<Value> {
    let (x, d_out) = (x.whole()?, weight.d_out());
    let residual = residual.map(|residual| x.on_tape(residual)?.whole());
    let residual = residual.transpose()?;
    let bias = bias.cloned().map(Data::Tensor);
    let mut dims = x.dims().to_vec();
    if let Some(last) = dims.last_mut() {
        *last = d_out;
    }
    if residual.as_ref().is_some_and(|of| of.dims() != dims) {
        bail!("{OP}: the residual's shape differs from {dims:?}");
    }
    let mut y = Numbers::new(DType::F32, x.rows() * d_out)?;
    {
        let (data, bias) = (x.data.read(), bias.as_ref().map(Data::read));
        let residual = residual.as_ref().map(|residual| residual.data.read());
        let bias = bias.as_ref().map(|bias| of_f32(bias.slice()));
        let residual = residual.as_ref().map(|residual| of_f32(residual.slice()));
        let epilogue = Epilogue {
            residual: residual.transpose()?,
            ..Epilogue::bias(bias.transpose()?)
        };
        let SliceMut::F32(y) = y.slice_mut() else {
            bail!("{OP}: a packed weight returns f32")
        };
        let source = Source::new(of_f32(data.slice())?, weight.d_in());
        weight.multiply(x.engine(), &source, &epilogue, y);
    }
    Ok(x.computed((y, dims), &[], |_, _| Ok(())).into())
}

fn of_f32(slice: Slice<'_>) -> Result<&[f32]> {
    match slice {
        Slice::F32(elements) => Ok(elements),
        _ => bail!("{OP}: a packed weight multiplies f32"),
    }
}

fn check(x: &Value, Packed(weight): &Packed) -> Result<()> {
    if x.is_tracked() {
        bail!(
            "{OP} is packed and has no gradient, but its input asks for one; train the layer before it is packed, or detach the input"
        );
    }
    if !matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16) {
        bail!(
            "{OP} is packed and takes F32, F16 or BF16, but its input is {:?}; convert it with to_dtype",
            x.dtype()
        );
    }
    if !matches!(x.device(), Device::Cpu) {
        bail!("{OP} is packed for the CPU, but its input lies elsewhere; move it with to_device");
    }
    if x.dims().last() != Some(&weight.d_in()) {
        bail!(
            "{OP}: input has shape {:?}, expected [.., {}]",
            x.dims(),
            weight.d_in()
        );
    }
    Ok(())
}
