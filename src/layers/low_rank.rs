//! A low-rank adapter beside the weight of a linear layer.

use candle_core::{ModuleT, Result, Tensor, bail};

use crate::config::getters;
use crate::{layers::Dropout, ops::Value};

/// A low-rank adapter, `scale · dropout(x)·Aᵀ·Bᵀ`, which a [`Linear`](crate::Linear) adds to its output: LoRA
/// (Hu et al. 2021, <https://arxiv.org/abs/2106.09685>).
#[derive(Clone, Debug)]
pub struct LowRank {
    a: Tensor, // [rank, d_in]
    b: Tensor, // [d_out, rank]
    scale: f64,
    pub(super) dropout: Dropout,
}

impl LowRank {
    /// Builds the adapter from `a` `[rank, d_in]` and `b` `[d_out, rank]`, without dropout.
    ///
    /// # Errors
    /// If the two shapes do not fit each other.
    pub fn from_parts(a: Tensor, b: Tensor, scale: f64) -> Result<Self> {
        if a.dims2()?.0 != b.dims2()?.1 {
            let (a, b) = (a.dims(), b.dims());
            bail!("low rank: a has shape {a:?}, b {b:?}; expected [rank, d_in] and [d_out, rank]");
        }
        Ok(Self {
            a,
            b,
            scale,
            dropout: Dropout::none(),
        })
    }

    /// Applies `dropout` to the adapter's input in training.
    pub fn with_dropout(mut self, dropout: Dropout) -> Self {
        self.dropout = dropout;
        self
    }

    getters! {
        /// The first factor, `[rank, d_in]`.
        a(&self) -> &Tensor => &self.a;
        /// The second factor, `[d_out, rank]`.
        b(&self) -> &Tensor => &self.b;
        /// The factor on its output: alpha divided by the rank.
        scale(&self) -> f64 => self.scale;
    }

    /// The adapter as one matrix to add to the weight, `scale · B·A`, `[d_out, d_in]`.
    pub fn product(&self) -> Result<Tensor> {
        let product = Value::of(&self.b)?.linear(&self.a.t()?, None, None)?;
        product.scale(self.scale)?.tensor()
    }

    pub(super) fn apply(&self, x: &Value, train: bool) -> Result<Value> {
        let narrow = self.dropout.apply(x, train)?.linear(&self.a, None, None)?;
        narrow.linear(&self.b, None, None)?.scale(self.scale)
    }
}

impl ModuleT for LowRank {
    /// # Shapes
    /// `[.., d_in]` of rank 1 or more, to `[.., d_out]`.
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        Value::through(x, |x| self.apply(x, train))
    }
}
