//! Softmax over the last dimension.

use candle_blocks_kernels::rows::softmax as kernel;
use candle_core::{Result, Tensor, bail};

use super::tape::{Data, Slot, Step, Value, check_float};
use super::{backward::Pass, composed, numbers::Numbers};

const OP: &str = "softmax";

/// Softmax over the last dimension: `exp(x - max) / Σ exp(x - max)`.
///
/// Equal to `torch.softmax(x, -1)`, except that a row of nothing but `-inf` gives zeros and not NaN.
///
/// # Shapes
/// `x` `[.., n]`, any rank from 1; the result has the shape of `x`.
///
/// # Errors
/// If `x` is not of a float type, or is a scalar.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    check_float(OP, x)?;
    if x.rank() == 0 {
        bail!("{OP}: the input is a scalar; expected a last dimension to sum over")
    }
    Value::of(x)?.softmax()?.tensor()
}

impl Value {
    /// As [`softmax`].
    pub fn softmax(&self) -> Result<Value> {
        let x = match self {
            Self::Tensor(x) => return Ok(Self::Tensor(composed::softmax(x, None)?)),
            Self::Taped(x) => x.whole()?,
        };
        let mut y = Numbers::new(x.dtype(), x.elem_count())?;
        kernel::softmax(x.cpu(), x.data.read().slice(), y.slice_mut(), x.slot.width);
        let slot = x.slot.clone();
        let dims = x.dims().to_vec();
        Ok(x.computed((y, dims), &[slot.place], |y| Softmax { y: y.clone(), slot }))
    }
}

struct Softmax {
    y: Data,
    slot: Slot,
}

impl Step for Softmax {
    fn backward(&self, pass: &mut Pass, dy: Numbers) -> Result<()> {
        let mut dx = Numbers::new(dy.dtype(), dy.len())?;
        let y = self.y.read();
        kernel::gradient(
            pass.cpu,
            y.slice(),
            dy.slice(),
            dx.slice_mut(),
            self.slot.width,
        );
        pass.add(&self.slot, dx)
    }
}
