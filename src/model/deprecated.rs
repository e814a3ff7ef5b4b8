//! Earlier names of what [`Checkpoint::load`] does, for one minor version.

use candle_core::{DType, Device};

use super::{Model, Seq2Seq};
use crate::checkpoint::{Checkpoint, Loader, Weights};
use crate::config::Precision;
use crate::error::Result;
use crate::layers::{FeedForward, Stack, TransformerBlock};

/// Earlier names of [`Checkpoint::load`] with a form and a method of [`Loader`].
#[doc(hidden)]
#[allow(missing_docs)]
impl Checkpoint {
    #[deprecated(
        note = "use `load(Weights::Dense(dtype, device))`, which fails where its first layer is loaded"
    )]
    pub fn loader(&self, dtype: DType, device: &Device) -> Result<Loader<'_>> {
        let loader = self.load(Weights::Dense(dtype, device));
        loader.check()?;
        Ok(loader)
    }

    #[deprecated(note = "use `load(Weights::Dense(dtype, device)).block(i)`")]
    pub fn block(&self, i: usize, dtype: DType, device: &Device) -> Result<TransformerBlock> {
        self.load(Weights::Dense(dtype, device)).block(i)
    }

    #[deprecated(note = "use `load(Weights::Dense(dtype, device)).feed_forward(i)`")]
    pub fn feed_forward(&self, i: usize, dtype: DType, device: &Device) -> Result<FeedForward> {
        self.load(Weights::Dense(dtype, device)).feed_forward(i)
    }

    #[deprecated(note = "use `load(Weights::Dense(dtype, device)).stack()`")]
    pub fn stack(&self, dtype: DType, device: &Device) -> Result<Stack> {
        self.load(Weights::Dense(dtype, device)).stack()
    }

    #[deprecated(note = "use `load(Weights::Packed(precision)).stack()`")]
    pub fn packed_stack(&self, precision: Precision) -> Result<Stack> {
        self.load(Weights::Packed(precision)).stack()
    }

    #[deprecated(note = "use `load(Weights::Dense(dtype, device)).model()`")]
    pub fn model(&self, dtype: DType, device: &Device) -> Result<Model> {
        self.load(Weights::Dense(dtype, device)).model()
    }

    #[deprecated(note = "use `load(Weights::Packed(precision)).model()`")]
    pub fn packed_model(&self, precision: Precision) -> Result<Model> {
        self.load(Weights::Packed(precision)).model()
    }

    #[deprecated(note = "use `load(Weights::Dense(dtype, device)).seq2seq()`")]
    pub fn seq2seq(&self, dtype: DType, device: &Device) -> Result<Seq2Seq> {
        self.load(Weights::Dense(dtype, device)).seq2seq()
    }

    #[deprecated(note = "use `load(Weights::Packed(precision)).seq2seq()`")]
    pub fn packed_seq2seq(&self, precision: Precision) -> Result<Seq2Seq> {
        self.load(Weights::Packed(precision)).seq2seq()
    }
}
