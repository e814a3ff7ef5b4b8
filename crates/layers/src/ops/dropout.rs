//! Inverted dropout with a given mask.

use candle_blocks_kernels::{Cpu, rows};
use candle_core::{CpuStorage, DType, Result, Storage, Tensor, bail};

use super::tape::{Taped, check_float};
use super::value::{Value, on_either};
use super::{cpu::cpu, numbers::Numbers};

const OP: &str = "dropout";

/// Divides kept elements by `1 - p`, and sets the others to 0.
///
/// The result is `x / (1 - p)` where `keep` is not 0, else 0, and likewise the gradient (Srivastava et al. 2014,
/// <https://jmlr.org/papers/v15/srivastava14a.html>). It is a true division, so that kept elements have the same
/// bits as NumPy's `x * mask / (1 - p)`. Dropped elements are 0 even if `x` is not finite.
///
/// # Shapes
/// `x`, `keep` (u8, 1 = keep) and the result have the same shape.
///
/// # Errors
/// If the shapes differ, `x` has no float type, `keep` is not u8, or not `0 <= p < 1`.
pub fn dropout(x: &Tensor, keep: &Tensor, p: f64) -> Result<Tensor> {
    check_float(OP, x)?;
    Value::of(x)?.dropout(keep, p)?.tensor()
}

impl Value {
    /// Like [`dropout`].
    pub fn dropout(&self, keep: &Tensor, p: f64) -> Result<Value> {
        check(self, keep, p)?;
        on_either!(self, x => Ok(x.dropout(keep, p)?.into()))
    }
}

impl Taped<Cpu> {
    fn dropout(&self, keep: &Tensor, p: f64) -> Result<Self> {
        let x = self.whole()?;
        let mask = Mask::new(keep, p)?;
        let mut y = Numbers::new(x.dtype(), x.elem_count())?;
        mask.apply(|keep, divisor| {
            rows::dropout(
                x.engine(),
                x.data.read().slice(),
                keep,
                divisor,
                y.slice_mut(),
            );
        })?;
        let slot = x.slot.clone();
        Ok(x.mapped(y, &[slot.place], move |pass, dy| {
            let mut dx = Numbers::new(dy.dtype(), dy.len())?;
            mask.apply(|keep, divisor| {
                rows::dropout(pass.engine, dy.slice(), keep, divisor, dx.slice_mut());
            })?;
            pass.add(&slot, dx)
        }))
    }
}

/// A dropout mask, and the divisor for kept elements.
pub(super) struct Mask {
    /// Contiguous, u8, on the CPU.
    keep: Tensor,
    divisor: f64,
}

impl Mask {
    pub fn new(keep: &Tensor, p: f64) -> Result<Self> {
        Ok(Self {
            keep: keep.contiguous()?,
            divisor: 1.0 - p,
        })
    }

    /// Runs `work` with the mask and the divisor.
    pub fn apply<R>(&self, work: impl FnOnce(&[u8], f64) -> R) -> Result<R> {
        with_marks(&self.keep, |keep| work(keep, self.divisor))
    }
}

/// Runs `work` with the elements in a contiguous u8 tensor.
///
/// # Errors
/// If the tensor is not on the CPU.
pub(super) fn with_marks<R>(marks: &Tensor, work: impl FnOnce(&[u8]) -> R) -> Result<R> {
    let (storage, layout) = marks.storage_and_layout();
    let Storage::Cpu(CpuStorage::U8(all)) = &*storage else {
        bail!("the mask is {:?}, expected U8 on the CPU", marks.dtype());
    };
    let marks = all.get(layout.start_offset()..).unwrap_or_default();
    Ok(work(&marks[..layout.shape().elem_count()]))
}

fn check(x: &Value, keep: &Tensor, p: f64) -> Result<()> {
    if keep.dtype() != DType::U8 {
        let dtype = keep.dtype();
        bail!("{OP}: the mask is {dtype:?}; expected U8 with 1 for kept elements");
    }
    if keep.dims() != x.dims() {
        bail!(
            "{OP}: the mask has shape {:?}; expected {:?}",
            keep.dims(),
            x.dims()
        )
    }
    if !(0.0..1.0).contains(&p) {
        bail!("{OP}: p is {p}; expected 0 <= p < 1")
    }
    Ok(())
}
/// Draws a mask with `n` elements: 1 if a uniform value from the ChaCha12 stream is at least `p`, else 0.
pub(crate) fn draw_mask((seed, position): ([u8; 32], u128), n: usize, p: f64) -> Result<Vec<u8>> {
    let mut keep = vec![0; n];
    rows::draw_mask(cpu()?, seed, position, p, &mut keep);
    Ok(keep)
}
