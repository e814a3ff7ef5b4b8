//! Sums, factors, conversions and dropout.

use candle_core::{DType, Result, Tensor};

use super::{Array, Composed, Taped};
use crate::ops::tape::Reads;

impl Taped<Composed> {
    pub(in crate::ops) fn add(&self, other: &Self) -> Result<Self> {
        let y = self.view()?.add(&other.view()?)?;
        let slots = [self.slot.clone(), other.slot.clone()];
        let asks = [slots[0].place, slots[1].place];
        Ok(self.mapped(y, &asks, move |pass, dy| {
            pass.add(&slots[1], dy.clone())?;
            pass.add(&slots[0], dy)
        }))
    }

    pub(in crate::ops) fn scale(&self, factor: f64) -> Result<Self> {
        let scaled = move |x: &Array| x.widened()?.affine(factor, 0.0)?.to_dtype(x.dtype());
        let slot = self.slot.clone();
        Ok(
            self.mapped(scaled(&self.view()?)?, &[slot.place], move |pass, dy| {
                pass.add(&slot, scaled(&dy)?)
            }),
        )
    }

    pub(in crate::ops) fn multiply_rows(&self, vector: &Tensor) -> Result<Self> {
        let vector_place = self.place(vector, Reads::Both);
        let (vector, slot, x) = (Array::of(vector), self.slot.clone(), self.view()?);
        let y = x.mul(&vector)?;
        Ok(
            self.mapped(y, &[slot.place, vector_place], move |pass, dy| {
                let products = || dy.widened()?.mul(&x.widened()?);
                pass.add_column_sums(vector_place, products, dy.dtype())?;
                match slot.place {
                    Some(_) => pass.add(&slot, dy.mul(&vector)?),
                    None => Ok(()),
                }
            }),
        )
    }

    pub(in crate::ops) fn add_to_rows(&self, vector: &Tensor) -> Result<Self> {
        let (vector_place, slot) = (self.place(vector, Reads::Forward), self.slot.clone());
        let y = self.view()?.add(&Array::of(vector))?;
        Ok(
            self.mapped(y, &[slot.place, vector_place], move |pass, dy| {
                pass.add_column_sums(vector_place, || Ok(dy.clone()), dy.dtype())?;
                pass.add(&slot, dy)
            }),
        )
    }

    pub(in crate::ops) fn mean_products(&self, other: &Self) -> Result<Self> {
        let (x, other_x) = (self.view()?.widened()?, other.view()?.widened()?);
        let (dtype, last) = (self.dtype(), self.dims().len().saturating_sub(1));
        let share = 1.0 / x.width().max(1) as f64;
        let y = x.mul(&other_x)?.sum(last)?.affine(share, 0.0)?;
        let dims = y.dims().to_vec();
        let operands = [(self.slot.clone(), other_x), (other.slot.clone(), x)];
        let asks = [operands[0].0.place, operands[1].0.place];
        Ok(
            self.computed((y.to_dtype(dtype)?, dims), &asks, move |pass, dy| {
                let dy = dy.widened()?.affine(share, 0.0)?;
                for (slot, beside) in &operands {
                    pass.add(slot, beside.mul(&dy)?.to_dtype(dtype)?)?;
                }
                Ok(())
            }),
        )
    }

    pub(in crate::ops) fn shift(&self, offset: f64) -> Result<Self> {
        let (slot, x) = (self.slot.clone(), self.view()?);
        let y = x.widened()?.affine(1.0, offset)?.to_dtype(x.dtype())?;
        Ok(self.mapped(y, &[slot.place], move |pass, dy| pass.add(&slot, dy)))
    }

    pub(in crate::ops) fn clamp(&self, [low, high]: [f64; 2]) -> Result<Self> {
        let (slot, x) = (self.slot.clone(), self.view()?);
        let y = x.contiguous()?.at_most(high)?;
        let y = match low == f64::NEG_INFINITY {
            true => y,
            false => y.at_least(low)?,
        };
        let within = y.clone();
        Ok(self.mapped(y, &[slot.place], move |pass, dy| {
            // True for unclamped values, including the limits, as in PyTorch.
            let kept = within.eq(&x)?;
            pass.add(
                &slot,
                kept.select(&dy.contiguous()?, &dy.zeros(dy.dims())?)?,
            )
        }))
    }

    pub(in crate::ops) fn to_dtype(&self, dtype: DType) -> Result<Self> {
        let (slot, from) = (self.slot.clone(), self.dtype());
        let y = self.view()?.to_dtype(dtype)?;
        Ok(self.mapped(y, &[slot.place], move |pass, dy| {
            pass.add(&slot, dy.to_dtype(from)?)
        }))
    }

    pub(in crate::ops) fn dropout(&self, keep: &Tensor, p: f64) -> Result<Self> {
        let (slot, keep) = (self.slot.clone(), Array::of(keep));
        let y = dropped(&self.view()?, &keep, 1.0 - p)?;
        Ok(self.mapped(y, &[slot.place], move |pass, dy| {
            pass.add(&slot, dropped(&dy, &keep, 1.0 - p)?)
        }))
    }
}

/// Divides kept elements by `divisor`, and sets the others to 0. A true division, unlike candle's `/` by a number.
#[doc(hidden)]
pub fn dropped(x: &Array, keep: &Array, divisor: f64) -> Result<Array> {
    let wide = x.contiguous()?.widened()?;
    let kept = wide.div(&wide.full(divisor)?)?;
    keep.select(&kept, &kept.zeros(kept.dims())?)?
        .to_dtype(x.dtype())
}
