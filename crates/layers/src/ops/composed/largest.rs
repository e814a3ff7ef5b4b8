//! Activation sparsity: keeps only each row's largest elements.

use candle_core::Result;

use super::{Array, Composed, Taped};

impl Taped<Composed> {
    pub(in crate::ops) fn largest(&self, z: f64) -> Result<Self> {
        let (slot, dtype) = (self.slot.clone(), self.dtype());
        let x = self.view()?.widened()?;
        let last = x.dims().len() - 1;
        let share = 1.0 / x.width().max(1) as f64;
        let mean = move |x: &Array| x.sum(last)?.affine(share, 0.0);
        let centered = x.sub(&mean(&x)?)?;
        let deviation = mean(&centered.sqr()?)?.sqrt()?;
        let above = centered.sub(&deviation.affine(z, 0.0)?)?;
        let zeros = above.zeros(above.dims())?;
        let is_below = above.le(&zeros)?; // false for NaN
        let y = is_below.select(&zeros, &above)?.to_dtype(dtype)?;
        Ok(self.mapped(y, &[slot.place], move |pass, dy| {
            let kept = is_below.select(&zeros, &dy.widened()?.contiguous()?)?;
            let share = mean(&kept)?;
            // If the deviation is 0, the numerator is 0.
            let unit = centered.div(&deviation.at_least(f64::from(f32::MIN_POSITIVE))?)?;
            let statistics_part = unit.affine(z, 1.0)?.mul(&share)?;
            pass.add(&slot, kept.sub(&statistics_part)?.to_dtype(dtype)?)
        }))
    }
}
