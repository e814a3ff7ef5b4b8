//! A model's outputs.

use candle_core::Tensor;

/// The outputs of a model. [`Model::forward`](crate::model::Model::forward) returns them.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelOutput {
    /// The input of the first block, `[batch, seq, d_model]`.
    pub embeddings: Tensor,
    /// The blocks' output after the final norm, `[batch, seq, d_model]`. A model with an output projection to the
    /// width of its word embeddings (OPT) returns the projected rows.
    pub last_hidden_state: Tensor,
    /// The pooler's output, `[batch, d]`, if the model has a pooler. A pooler that merges windows of patches
    /// (Qwen2-VL) returns `[batch, windows, d]`.
    pub pooler_output: Option<Tensor>,
    /// The head's output, if the model has a head: `[batch, seq, n]` for a head that reads every position, otherwise
    /// `[batch, n]`.
    pub logits: Option<Tensor>,
}
