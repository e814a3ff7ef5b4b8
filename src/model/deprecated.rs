//! Earlier names of what [`Checkpoint::load`] does, for one minor version.

use candle_core::{DType, Device};

use super::{Model, Seq2Seq};
use crate::checkpoint::{Checkpoint, Loader, Weights};
use crate::config::Precision;
use crate::error::Result;
use crate::layers::{FeedForward, Stack, TransformerBlock};

macro_rules! earlier {
    (dense: $($method:ident($($i:ident)?) -> $dense:ty),+; packed: $($name:ident = $of:ident -> $packed:ty),+) => {
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

            $(#[deprecated(note = "use `load(Weights::Dense(dtype, device))` and its method of this name")]
            pub fn $method(&self, $($i: usize,)? dtype: DType, device: &Device) -> Result<$dense> {
                self.load(Weights::Dense(dtype, device)).$method($($i)?)
            })+

            $(#[deprecated(note = "use `load(Weights::Packed(precision))` and its method of this name without `packed_`")]
            pub fn $name(&self, precision: Precision) -> Result<$packed> {
                self.load(Weights::Packed(precision)).$of()
            })+
        }
    };
}

earlier! {
    dense: block(i) -> TransformerBlock, feed_forward(i) -> FeedForward, stack() -> Stack, model() -> Model, seq2seq() -> Seq2Seq;
    packed: packed_stack = stack -> Stack, packed_model = model -> Model, packed_seq2seq = seq2seq -> Seq2Seq
}
