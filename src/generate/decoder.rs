//! What generation asks of a model: new tokens in, logits out.

use candle_core::Result;
use candle_core::Tensor;

use crate::config::{EmbeddingsConfig, ModelConfig, Position, RotaryScaling};
use crate::model::{Model, ModelCache, ModelInput};

/// A model and its cache, as generation uses them.
pub trait Decoder {
    /// The logits `[batch, n_tokens]` behind the last of some new tokens, which follow those before. The mask is that of the
    /// new tokens.
    ///
    /// # Errors
    /// If the model cannot compute them; the tokens are then not added to those before.
    fn next_logits(&mut self, new: &ModelInput) -> Result<Tensor>;

    /// Goes on with these sequences of the batch alone, in this order, which is that of the batch.
    ///
    /// # Errors
    /// If memory for them cannot be had.
    fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()>;

    /// Forgets all tokens.
    fn forget(&mut self);

    /// How many positions the model has, if they are limited.
    fn max_positions(&self) -> Option<usize> {
        None
    }

    /// The number of tokens behind which the keys of earlier ones are no longer right: when the longest sequence of the batch
    /// passes it, in either direction, all are computed once more.
    fn renewed_behind(&self) -> usize {
        usize::MAX
    }
}

/// A decoder-only model with a cache of its own.
#[derive(Clone, Debug)]
pub struct CausalDecoder<'m> {
    model: &'m Model,
    cache: ModelCache,
}

impl<'m> CausalDecoder<'m> {
    /// Begins with an empty cache.
    pub fn new(model: &'m Model) -> Self {
        Self {
            model,
            cache: model.new_cache(),
        }
    }
}

impl Decoder for CausalDecoder<'_> {
    fn next_logits(&mut self, new: &ModelInput) -> Result<Tensor> {
        self.model.next_logits(new, &mut self.cache)
    }

    fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        self.cache.keep_sequences(sequences)
    }

    fn forget(&mut self) {
        self.cache = self.model.new_cache();
    }

    fn max_positions(&self) -> Option<usize> {
        max_positions(self.model)
    }

    fn renewed_behind(&self) -> usize {
        short_positions(self.model.config())
    }
}

/// How many positions a model has, if a table limits them.
pub fn max_positions(model: &Model) -> Option<usize> {
    let EmbeddingsConfig::Tokens(tokens) = &model.config().embeddings else {
        return None;
    };
    let table = tokens.positions?;
    Some(table.n_rows.saturating_sub(table.first_row))
}

/// Up to how many positions LongRoPE turns with its short factors.
fn short_positions(config: &ModelConfig) -> usize {
    let of = |position: &Position| match position {
        Position::Rotary(rotary) => match rotary.scaling {
            RotaryScaling::LongRope {
                original_positions, ..
            } => Some(original_positions),
            _ => None,
        },
        _ => None,
    };
    let mut blocks = config.stack.blocks.iter();
    let short = blocks.find_map(|block| of(&block.attention.position));
    short.unwrap_or(usize::MAX)
}
