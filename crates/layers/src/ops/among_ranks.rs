//! The two operations between which ranks compute their parts of a layer, and sum them.
//!
//! ```text
//! x → split_among → a rank's rows of the first weights → its columns of the last → summed_over → y
//! ```
//!
//! Forward, the first operation does nothing and the second sums over the ranks. Backward, it is the other way
//! round: *f* and *g* in Megatron-LM (Shoeybi et al. 2019, <https://arxiv.org/abs/1909.08053>, section 3). If
//! several ranks have the same rows of a parameter, its gradients are summed where the tape ends.

use std::sync::Arc;

use candle_core::Result;

use super::engine::Engine;
use super::ranks::Ranks;
use super::tape::Taped;
use super::value::{Value, on_either};

impl Value {
    /// Returns the value for each rank's part of a layer. The ranks' gradients are summed.
    pub fn split_among(&self, ranks: &Arc<Ranks>) -> Result<Value> {
        on_either!(self, x => Ok(x.split_among(ranks)?.into()))
    }

    /// Sums the ranks' results. Each rank's gradient is the sum's gradient.
    pub fn summed_over(&self, ranks: &Ranks) -> Result<Value> {
        on_either!(self, x => Ok(x.summed_over(ranks)?.into()))
    }
}

impl<E: Engine> Taped<E> {
    fn split_among(&self, ranks: &Arc<Ranks>) -> Result<Self> {
        let x = self.whole()?;
        x.divide(ranks);
        let (slot, dims, ranks) = (x.slot.clone(), x.dims().to_vec(), ranks.clone());
        Ok(x.mapped(x.data.clone(), &[x.slot.place], move |pass, dy| {
            pass.add(&slot, ranks.sum::<E>(dy.into(), &dims)?)
        }))
    }

    fn summed_over(&self, ranks: &Ranks) -> Result<Self> {
        let x = self.whole()?;
        let sum = ranks.sum::<E>(x.data.clone(), x.dims())?;
        let slot = x.slot.clone();
        Ok(x.mapped(sum, &[slot.place], move |pass, dy| pass.add(&slot, dy)))
    }
}
