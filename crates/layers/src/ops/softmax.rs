//! Softmax over the last dimension.

use candle_blocks_kernels::{Cpu, SliceMut, rows::softmax as kernel};
use candle_core::{Result, Tensor, bail};

use super::kernels::{Data, same_type};
use super::numbers::{Number, Numbers};
use super::tape::{Taped, check_float};
use super::value::{Value, on_either};

const OP: &str = "softmax";

/// Computes the softmax over the last dimension: `exp(x - max) / Σ exp(x - max)`.
///
/// Equal to `torch.softmax(x, -1)`, except that a row with only `-inf` gives zeros rather than NaN.
///
/// # Shapes
/// `x` is `[.., n]` with rank 1 or more. The result has `x`'s shape.
///
/// # Errors
/// If `x` has no float type, or is a scalar.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    check_float(OP, x)?;
    if x.rank() == 0 {
        bail!("{OP}: the input is a scalar; expected a last dimension to sum over")
    }
    Value::of(x)?.softmax(SoftmaxInput::Any)?.tensor()
}

/// A guarantee about a softmax's input.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SoftmaxInput {
    /// A row may be all `-inf`.
    Any,
    /// Each row has a finite element, so that candle's fused operation can be used.
    Finite,
}

impl Value {
    /// Like [`softmax`].
    pub(crate) fn softmax(&self, scores: SoftmaxInput) -> Result<Value> {
        on_either!(self, x => Ok(x.softmax(scores)?.into()))
    }
}

impl Value {
    /// Divides each element by its row's sum plus `epsilon`.
    pub fn shares(&self, epsilon: f64) -> Result<Value> {
        on_either!(self, x => Ok(x.shares(epsilon)?.into()))
    }
}

/// Computes `x / (Σ x + epsilon)` for each row, in place, with the sum in f64.
fn divide_by_sums<T: Number>(rows: &mut [T], width: usize, epsilon: f64, sums: &mut Vec<f64>) {
    for row in rows.chunks_exact_mut(width.max(1)) {
        let sum = row.iter().map(|x| x.wide()).sum::<f64>() + epsilon;
        row.iter_mut().for_each(|x| *x = T::rounded(x.wide() / sum));
        sums.push(sum);
    }
}

/// Computes `(dy - Σ dy · y) / sum` for each row, in place of `dy`.
fn share_gradients<T: Number>(y: &[T], dy: &mut [T], width: usize, sums: &[f64]) {
    let rows = y
        .chunks_exact(width.max(1))
        .zip(dy.chunks_exact_mut(width.max(1)));
    for ((y, dy), sum) in rows.zip(sums) {
        let products = y.iter().zip(dy.iter()).map(|(y, dy)| y.wide() * dy.wide());
        let along: f64 = products.sum();
        dy.iter_mut()
            .for_each(|dy| *dy = T::rounded((dy.wide() - along) / sum));
    }
}

impl Taped<Cpu> {
    fn shares(&self, epsilon: f64) -> Result<Self> {
        let x = self.whole()?;
        let (slot, width) = (x.slot.clone(), x.slot.width);
        let (mut y, mut sums) = (x.copy()?, Vec::new());
        match y.slice_mut() {
            SliceMut::F32(y) => divide_by_sums(y, width, epsilon, &mut sums),
            SliceMut::F64(y) => divide_by_sums(y, width, epsilon, &mut sums),
            SliceMut::F16(y) => divide_by_sums(y, width, epsilon, &mut sums),
            SliceMut::Bf16(y) => divide_by_sums(y, width, epsilon, &mut sums),
        }
        let y = Data::from(y);
        Ok(x.mapped(y.clone(), &[slot.place], move |pass, mut dy| {
            same_type!(dy.slice_mut(), y.read().slice(), |dy, y| {
                share_gradients(y, dy, width, &sums)
            });
            pass.add(&slot, dy)
        }))
    }

    fn softmax(&self, _: SoftmaxInput) -> Result<Self> {
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
