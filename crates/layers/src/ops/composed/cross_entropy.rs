//! Mean cross-entropy over rows of logits.

use candle_core::Result;

use super::softmax::softmax;
use super::{Array, Composed, Taped};
use crate::ops::softmax::SoftmaxInput;

impl Taped<Composed> {
    /// Computes the mean loss over rows of logits, `counted` of which have a class.
    pub(in crate::ops) fn cross_entropy(
        &self,
        classes: Vec<Option<usize>>,
        counted: usize,
    ) -> Result<Self> {
        let (slot, dtype) = (self.slot.clone(), self.dtype());
        let x = self.view()?.widened()?.rows()?;
        let (n_rows, device) = (classes.len(), x.device());
        let ids = classes.iter().map(|class| class.unwrap_or(0) as u32);
        let ids = Array::upload_ids(ids.collect(), &[n_rows, 1], device)?;
        let weight = |class: &Option<usize>| f64::from(u8::from(class.is_some())) / counted as f64;
        let weights = classes.iter().map(weight).collect();
        let weights = Array::upload(weights, &[n_rows, 1], x.dtype(), device)?;
        let shifted = x.sub(&x.max()?)?;
        let losses = shifted.exp()?.sum(1)?.log()?.sub(&shifted.gather(&ids)?)?;
        let mean = weights.transpose(0, 1)?.matmul(&losses)?.reshape(&[])?;
        // `(softmax(x) - 1 at the class) · weight`
        let step = move |pass: &mut super::BackwardPass<Composed>, dy: Array| {
            let minus_one = Array::filled(-1.0, &[n_rows, 1], x.dtype(), x.device())?;
            let factor = weights.mul(&dy.to_dtype(x.dtype())?)?;
            let dx = softmax(&x, SoftmaxInput::Any)?.scatter_add(&ids, &minus_one)?;
            pass.add(&slot, dx.mul(&factor)?.to_dtype(dtype)?)
        };
        Ok(self.computed((mean.to_dtype(dtype)?, vec![]), &[self.slot.place], step))
    }
}
