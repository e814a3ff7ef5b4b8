//! Softmax over the last dimension.

use candle_blocks_kernels::{Cpu, rows::softmax as kernel};
use candle_core::{Result, Tensor, bail};

use super::tape::{Taped, check_float};
use super::value::{Value, on_either};
use super::{kernels::Data, numbers::Numbers};

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
    Value::of(x)?.softmax(Scores::Any)?.tensor()
}

/// What a softmax may be asked of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scores {
    /// A row may be all `-inf`.
    Any,
    /// Each row has a finite number: candle's fused operation will do.
    Finite,
}

impl Value {
    /// As [`softmax`].
    pub fn softmax(&self, scores: Scores) -> Result<Value> {
        on_either!(self, x => Ok(x.softmax(scores)?.into()))
    }
}

impl Taped<Cpu> {
    fn softmax(&self, _: Scores) -> Result<Self> {
        let x = self.whole()?;
        let mut y = Numbers::new(x.dtype(), x.elem_count())?;
        kernel::softmax(
            x.engine(),
            x.data.read().slice(),
            y.slice_mut(),
            x.slot.width,
        );
        let (y, slot) = (Data::from(y), x.slot.clone());
        Ok(x.mapped(y.clone(), &[slot.place], move |pass, dy| {
            let mut dx = Numbers::new(dy.dtype(), dy.len())?;
            let (y, to) = (y.read(), dx.slice_mut());
            kernel::gradient(pass.engine, y.slice(), dy.slice(), to, slot.width);
            pass.add(&slot, dx)
        }))
    }
}
