//! Layers with dropout as candle `Module`s.

use candle_core::{Module, ModuleT, Result, Tensor};

/// A layer in evaluation mode, as candle's [`Module`]: dropout is off, and there is no mask.
///
/// ```
/// use candle_blocks::layers::Evaluation;
/// use candle_blocks::{FeedForward, FeedForwardConfig};
/// use candle_core::{DType, Device, Module, Tensor};
/// let vb = candle_nn::VarBuilder::zeros(DType::F32, &Device::Cpu);
/// let layer = FeedForward::new(&FeedForwardConfig::new(8).with_dropout(0.1), vb)?;
/// let model = candle_nn::seq().add(Evaluation(layer));
/// let x = Tensor::ones((2, 8), DType::F32, &Device::Cpu)?;
/// assert_eq!(model.forward(&x)?.dims(), [2, 8]);
/// # Ok::<(), candle_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Evaluation<L>(pub L);

impl<L: ModuleT> Module for Evaluation<L> {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.0.forward_t(x, false)
    }
}
