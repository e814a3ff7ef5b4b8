//! Mean squared error.

use candle_core::Result;

use super::{Array, Composed, Taped};

impl Taped<Composed> {
    pub(in crate::ops) fn mse(&self, target: &Self) -> Result<Self> {
        let (dtype, n) = (self.dtype(), self.elem_count() as f64);
        let [x, target_numbers] = [self, target].map(|of| of.view()?.widened());
        let difference = x?.sub(&target_numbers?)?;
        let squares = difference.sqr()?.rows()?;
        let mean = squares.sum(1)?.sum(0)?.reshape(&[])?.affine(1.0 / n, 0.0)?;
        let slots = [self.slot.clone(), target.slot.clone()];
        let asks = [self.slot.place, target.slot.place];
        let step = move |pass: &mut super::BackwardPass<Composed>, dy: Array| {
            for (slot, factor) in slots.iter().zip([2.0 / n, -2.0 / n]) {
                if slot.place.is_some() {
                    let factor = dy.to_dtype(difference.dtype())?.affine(factor, 0.0)?;
                    pass.add(slot, difference.mul(&factor)?.to_dtype(dtype)?)?;
                }
            }
            Ok(())
        };
        Ok(self.computed((mean.to_dtype(dtype)?, vec![]), &asks, step))
    }
}
