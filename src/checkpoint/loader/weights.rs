//! The form in which layers are loaded.

use candle_core::{DType, Device};

use crate::config::Precision;

/// The form in which [`Checkpoint::load`](crate::Checkpoint::load) loads layers.
#[derive(Clone, Copy, Debug)]
pub enum Weights<'d> {
    /// Tensors with this dtype on this device, for any computation with gradients. Quantized weights are dequantized.
    Dense(DType, &'d Device),
    /// Packed for inference on the CPU, on which it is the fastest form.
    Packed(Precision),
    /// Like [`Self::Dense`], but linear layers keep the weights that are quantized in the files quantized. This trains adapters
    /// with the memory of the quantized weights ([`Lora`](crate::train::Lora); QLoRA, <https://arxiv.org/abs/2305.14314>).
    ///
    /// The quantized values are in memory. Each product, forward and backward, dequantizes its weight and frees it
    /// afterwards: results and gradients have the same bits as those of the dequantized model. On a device other than the
    /// CPU, the host dequantizes and copies the result there. These weights are frozen: training only makes variables of
    /// the others (norms, biases, embeddings). [`Loader::var_builder`](crate::Loader::var_builder) returns dense tensors.
    /// For inference on the CPU, [`Precision::AsStored`] packs the quantized values.
    ///
    /// ```no_run
    /// use candle_blocks::{Checkpoint, Weights, candle_core::{DType, Device}, train::{Lora, LoraConfig}};
    /// let checkpoint = Checkpoint::open("llama-3.2-1b-gptq")?;
    /// let mut stack = checkpoint.load(Weights::AsStored(DType::F32, &Device::Cpu)).stack()?;
    /// let lora = Lora::attach(&mut stack, LoraConfig::new(8, 16.0, &["attention.*"]), 42)?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    AsStored(DType, &'d Device),
}
