//! A model's outputs.

use candle_core::Tensor;

use crate::error::Result;

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

impl ModelOutput {
    /// Returns the mean of each sequence's hidden states, `[batch, d]`, without the padding in the mask `[batch, seq]`
    /// (1 = a real token): the pooling of most embedding models, `Pooling` in sentence-transformers.
    ///
    /// # Errors
    /// If the mask has another shape.
    pub fn mean(&self, mask: Option<&Tensor>) -> Result<Tensor> {
        let hidden = &self.last_hidden_state;
        let Some(mask) = mask else {
            return Ok(hidden.mean(1)?);
        };
        let mask = mask.to_dtype(hidden.dtype())?.unsqueeze(2)?; // [batch, seq, 1]
        let sums = hidden.broadcast_mul(&mask)?.sum(1)?;
        Ok(sums.broadcast_div(&mask.sum(1)?.clamp(1e-9, f64::MAX)?)?)
    }
}
