//! The public passes of a mixer other than attention.

/// Implements the passes of a layer by its `apply` and `is_packed`. The name is the one in messages.
macro_rules! passes {
    ($layer:ty, $name:literal, $($is_packed:tt)+) => {
        impl $layer {
            /// Returns true if the layer's weights are packed.
            pub(super) fn is_packed(&self) -> bool {
                self.$($is_packed)+
            }

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
                let pass = $crate::layers::pass::Pass::new(context, x.dims())?;
                let origin = $crate::layers::pass::Origin::new($name, self.is_packed());
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

pub(super) use passes;
