//! A block's view of its mixer, and the code that mixers other than attention share.

use candle_blocks_kernels::memory::LargePages;
use candle_core::{ModuleT, Result};

use super::Mixer;
use crate::config::MixerFacts;
use crate::layers::packed::Packing;
use crate::layers::{pass::Pass, state::LayerState};
use crate::ops::Value;

/// The functions of a mixer that its block calls.
pub(super) trait MixerLayer: ModuleT {
    /// Returns the layer's name, for messages.
    fn name(&self) -> &'static str;

    /// Returns the properties that other parts of a model depend on.
    fn facts(&self) -> MixerFacts;

    /// Returns true if the weights are packed.
    fn is_packed(&self) -> bool;

    /// Returns the mixer with packed weights.
    fn packed_mixer(&self, packing: &Packing) -> Result<Mixer>;

    /// Creates the empty state for a cache. A packed mixer allocates from `pages`.
    fn new_state(&self, pages: &LargePages) -> LayerState;

    /// # Errors
    /// If the state belongs to another mixer or another number of sequences.
    fn check_state(&self, state: &LayerState, batch: usize) -> Result<()>;

    /// Computes the output for positions after the state's, and adds it to `residual`.
    fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        state: Option<&mut LayerState>,
        residual: Option<&Value>,
    ) -> Result<Value>;
}

/// Implements the public passes of a layer.
macro_rules! passes {
    ($layer:ident) => {
        crate::layers::packed::packs!($layer);

        impl $layer {
            /// Computes the output in evaluation mode, without a mask. Shapes are those in [`Self::forward_with`].
            pub fn forward(
                &self,
                x: &::candle_core::Tensor,
            ) -> ::candle_core::Result<::candle_core::Tensor> {
                self.forward_with(x, &$crate::layers::ForwardContext::evaluation())
            }

            /// Computes the output with the context's padding mask and mode, and, in a layer with attention, its positions.
            ///
            /// # Shapes
            /// `[batch, seq, d_model]` to the same shape. `[seq, d_model]` is a single sequence, `[d_model]` a single
            /// position.
            ///
            /// # Errors
            /// If the last dimension is not `d_model`, the rank is above 3, a padding mask does not fit, or there is an
            /// additive mask.
            pub fn forward_with(
                &self,
                x: &::candle_core::Tensor,
                context: &$crate::layers::ForwardContext,
            ) -> ::candle_core::Result<::candle_core::Tensor> {
                use $crate::layers::mixer::layer::MixerLayer;
                let pass = $crate::layers::pass::Pass::new(context, x.dims())?;
                let origin = $crate::layers::pass::Origin::new(self.name(), self.is_packed());
                pass.through(origin, x, |x| self.apply(x, &pass, None, None))
            }
        }

        impl ::candle_core::ModuleT for $layer {
            fn forward_t(
                &self,
                x: &::candle_core::Tensor,
                train: bool,
            ) -> ::candle_core::Result<::candle_core::Tensor> {
                let context = $crate::layers::ForwardContext::evaluation();
                self.forward_with(x, &context.with_train(train))
            }
        }
    };
}

/// Implements [`MixerLayer`](super::MixerLayer) and the public passes of a recurrent mixer with these parts. `exact` parts stay
/// in f32 in every precision: few weights, on which all later positions depend. `own` parts have the layer's own role.
macro_rules! recurrent {
    ($kind:ident: $layer:ident, $name:literal, $role:ident,
        [$($part:ident $($exact:ident)?),+] $(, own [$($own:ident),+])?) => {
        crate::layers::mixer::layer::passes!($layer);
        crate::layers::visit::parts!($layer: Self { $($part,)+ $($($own,)+)? .. } => [$($($own),+)?] [$($part),+]);

        impl $layer {
            /// Returns the layer with packed parts, and all else as it is.
            fn with_packed_parts(&self, packing: &Packing) -> ::candle_core::Result<Self> {
                Ok(Self {
                    $($part: self.$part.packed(&packing$(.$exact())?.at(stringify!($part)))?,)+
                    is_packed: true,
                    ..self.clone()
                })
            }
        }

        impl crate::layers::mixer::layer::MixerLayer for $layer {
            fn name(&self) -> &'static str {
                $name
            }

            fn facts(&self) -> crate::config::MixerFacts {
                self.config.facts()
            }

            fn is_packed(&self) -> bool {
                self.is_packed
            }

            fn packed_mixer(&self, packing: &Packing) -> ::candle_core::Result<super::Mixer> {
                Ok(super::Mixer::$kind(self.packed(&packing.at(super::$role))?))
            }

            fn new_state(&self, _: &::candle_blocks_kernels::memory::LargePages) -> LayerState {
                LayerState::recurrent()
            }

            fn check_state(&self, state: &LayerState, batch: usize) -> ::candle_core::Result<()> {
                state.check_recurrent(batch, &self.state_dims())
            }

            fn apply(
                &self,
                x: &Value,
                pass: &Pass,
                state: Option<&mut LayerState>,
                residual: Option<&Value>,
            ) -> ::candle_core::Result<Value> {
                self.apply(x, pass, state, residual)
            }
        }
    };
}

pub(super) use {passes, recurrent};
