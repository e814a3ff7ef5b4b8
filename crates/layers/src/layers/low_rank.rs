//! A low-rank adapter beside the weight of a linear layer.

use std::sync::{Arc, OnceLock};

use candle_core::{DType, ModuleT, Result, Tensor, bail};

use crate::config::getters;
use crate::layers::Dropout;
use crate::ops::{Value, wide};

/// A low-rank adapter, `scale · dropout(x)·Aᵀ·Bᵀ`, which a [`Linear`](crate::Linear) adds to its output: LoRA (Hu et
/// al. 2021, <https://arxiv.org/abs/2106.09685>).
///
/// The factors have the weight's dtype, or are f32 beside a half-precision weight. In the second case the layer adds
/// the two outputs in f32 and rounds the sum, like PEFT.
#[derive(Clone, Debug)]
pub struct LowRank {
    a: Tensor, // [rank, d_in]
    b: Tensor, // [d_out, rank]
    scale: f64,
    pub(super) dropout: Dropout,
    /// The role of the variable to which the adapter was added, which all copies of the adapter share.
    merged: Arc<OnceLock<String>>,
}

impl LowRank {
    /// Builds the adapter from `a` `[rank, d_in]` and `b` `[d_out, rank]`, without dropout.
    ///
    /// # Errors
    /// If the two shapes or dtypes do not fit each other.
    pub fn from_parts(a: Tensor, b: Tensor, scale: f64) -> Result<Self> {
        if a.dtype() != b.dtype() {
            let (a, b) = (a.dtype(), b.dtype());
            bail!("low rank: a is {a:?}, but b is {b:?}; expected the same dtype");
        }
        if a.dims2()?.0 != b.dims2()?.1 {
            let (a, b) = (a.dims(), b.dims());
            bail!("low rank: a has shape {a:?}, b {b:?}; expected [rank, d_in] and [d_out, rank]");
        }
        Ok(Self {
            a,
            b,
            scale,
            dropout: Dropout::none(),
            merged: Arc::default(),
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
        /// The factor on the adapter's output: alpha divided by the rank.
        scale(&self) -> f64 => self.scale;
    }

    /// # Errors
    /// If the factors' dtype is neither the weight's nor f32 beside a half type.
    pub(super) fn check_beside(&self, weight: DType) -> Result<()> {
        let own = self.a.dtype();
        if own != weight && own != wide(weight) {
            bail!(
                "low rank: the factors are {own:?}, but the weight is {weight:?}; convert the factors with to_dtype"
            );
        }
        Ok(())
    }

    /// Notes that the adapter was added to a variable, so that no copy of the layer adds it again.
    pub(super) fn set_merged(&self, role: &str) {
        let _ = self.merged.set(role.to_string());
    }

    /// # Errors
    /// If the adapter is already part of the variable beside it.
    fn check_unmerged(&self) -> Result<()> {
        match self.merged.get() {
            None => Ok(()),
            Some(role) => bail!(
                "{role}: its adapter was merged into this variable, and would be added to it once more; use the stack that was \
                 merged, or attach adapters to a stack of plain tensors (Checkpoint::load), which merging leaves as they are"
            ),
        }
    }

    /// Returns the adapter as one matrix to add to the weight, `scale · B·A`, `[d_out, d_in]`.
    ///
    /// # Errors
    /// If `Lora::merge` has added it to a variable.
    pub fn product(&self) -> Result<Tensor> {
        self.check_unmerged()?;
        let product = Value::of(&self.b)?.linear(&self.a.t()?, None, None)?;
        product.scale(self.scale)?.tensor()
    }

    /// Computes the output, in the factors' dtype.
    pub(super) fn apply(&self, x: &Value, train: bool) -> Result<Value> {
        self.check_unmerged()?;
        let x = x.to_dtype(self.a.dtype())?;
        let narrow = self.dropout.apply(&x, train)?.linear(&self.a, None, None)?;
        narrow.linear(&self.b, None, None)?.scale(self.scale)
    }
}

impl ModuleT for LowRank {
    /// # Shapes
    /// `[.., d_in]` of rank 1 or more, to `[.., d_out]`, in the factors' dtype.
    ///
    /// # Errors
    /// If the last dimension is not `d_in`, or the factors' dtype does not fit a weight with the input's dtype.
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.check_beside(x.dtype())?;
        Value::through(x, |x| self.apply(x, train))
    }
}
