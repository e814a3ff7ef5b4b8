//! Concatenation of heads.

use candle_core::Result;

use super::{Array, Composed, Taped};

impl Taped<Composed> {
    pub(in crate::ops) fn joined(&self, other: &Self) -> Result<Self> {
        let (x, y) = (self.view()?, other.view()?);
        let (own, added) = (x.width(), y.width());
        let (rows, heads, others) = (self.dims()[0], self.dims()[1], other.dims()[1]);
        let y = match others == heads {
            true => y,
            false => y.zeros(&[rows, heads, added])?.add(&y)?,
        };
        let dims = vec![rows, heads, own + added];
        let slots = [self.slot.clone(), other.slot.clone()];
        let asks = [slots[0].place, slots[1].place];
        let joined = Array::cat(&[x, y], 2)?;
        Ok(self.computed((joined, dims), &asks, move |pass, dy| {
            pass.add(&slots[0], dy.narrow(2, 0, own)?.contiguous()?)?;
            let other_gradient = dy.narrow(2, own, added)?;
            let other_gradient = match others == heads {
                true => other_gradient.contiguous()?,
                false => other_gradient.sum(1)?.reshape(&[rows, 1, added])?,
            };
            pass.add(&slots[1], other_gradient)
        }))
    }
}
