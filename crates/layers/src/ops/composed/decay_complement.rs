//! The factor on what a real-gated linear recurrence writes.

use candle_core::Result;

use super::{Array, Composed, Taped};

impl Taped<Composed> {
    pub(in crate::ops) fn decay_complement(&self) -> Result<Self> {
        let (slot, x) = (self.slot.clone(), self.view()?.contiguous()?);
        let y = match x.is_empty() {
            true => x.clone(),
            false => complement(&x)?.0.sqrt()?,
        };
        Ok(self.mapped(y, &[slot.place], move |pass, dy| {
            if x.is_empty() {
                return pass.add(&slot, dy);
            }
            let (complement, square) = complement(&x)?;
            let slope = square.div(&complement.at_least(2.5e-7)?.sqrt()?)?;
            pass.add(&slot, dy.mul(&slope)?)
        }))
    }
}

/// Returns `1 - exp(-2x)` as `tanh(x) · (1 + exp(-2x))`, which does not cancel, and `exp(-2x)`.
fn complement(x: &Array) -> Result<(Array, Array)> {
    let square = x.affine(-2.0, 0.0)?.exp()?;
    Ok((x.tanh()?.mul(&square.affine(1.0, 1.0)?)?, square))
}
