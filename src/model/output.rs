//! What a model gives.

use candle_core::Tensor;

/// What a model gives for an input.
#[derive(Clone, Debug)]
pub struct ModelOutput {
    /// The input of the first block, `[batch, seq, d_model]`.
    pub embeddings: Tensor,
    /// The output of the blocks behind their final norm, `[batch, seq, d_model]`; where a map leads back to the width of the
    /// words (OPT), behind that.
    pub last_hidden_state: Tensor,
    /// What the pooler makes of it, `[batch, d]`, if the model has one; of one that reads windows of patches (Qwen2-VL),
    /// `[batch, windows, d]`.
    pub pooler_output: Option<Tensor>,
    /// What the head makes of it, if the model has one: `[batch, seq, n]` for a head that reads every position, otherwise
    /// `[batch, n]`.
    pub logits: Option<Tensor>,
}
