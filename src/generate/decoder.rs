//! What generation asks of a model: new tokens in, logits out.

use candle_core::{Error, Result, Tensor, bail};

use crate::config::{EmbeddingsConfig, ModelConfig, Position, RotaryScaling};
use crate::model::{Encoded, Model, ModelCache, ModelInput};

/// A model and its cache, as generation uses them.
pub trait Decoder {
    /// The logits `[batch, n_tokens]` behind the last of some new tokens, which follow those before. The mask is that of the
    /// new tokens.
    ///
    /// # Errors
    /// If the model cannot compute them; the tokens are then not added to those before.
    fn next_logits(&mut self, new: &ModelInput) -> Result<Tensor>;

    /// Goes on with these sequences of the batch alone, in this order, which is that of the batch. Behind
    /// [`Self::copy_sequences`], they are in any order, and some several times.
    ///
    /// # Errors
    /// If memory for them cannot be had.
    fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()>;

    /// Gets ready for copies of sequences, which beam search goes on with; before the first token.
    ///
    /// # Errors
    /// If the decoder can make none.
    fn copy_sequences(&mut self) -> Result<()> {
        bail!(
            "this decoder goes on with no copies of sequences, which beam search needs; set num_beams to 1"
        )
    }

    /// The tokens that an encoder has read for each sequence, none if it has read something else; `None` if there is no
    /// encoder.
    ///
    /// # Errors
    /// If they cannot be read.
    fn encoder_tokens(&self) -> Result<Option<Vec<Vec<u32>>>> {
        Ok(None)
    }

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

/// A decoder with a cache of its own, and the output of an encoder that it attends to, if it has one.
#[derive(Clone, Debug)]
pub struct CausalDecoder<'m> {
    model: &'m Model,
    cache: ModelCache,
    encoded: Option<Encoded>,
    /// If sequences are copied: which of the encoder's sequences each of the batch attends to.
    copied: Option<Vec<usize>>,
}

impl<'m> CausalDecoder<'m> {
    /// Begins with an empty cache.
    pub fn new(model: &'m Model) -> Self {
        Self {
            model,
            cache: model.new_cache(),
            encoded: None,
            copied: None,
        }
    }

    /// Attends to what the encoder of a [`Seq2Seq`](crate::model::Seq2Seq) made, whose decoder this is.
    pub fn attending_to(mut self, encoded: Encoded) -> Self {
        self.encoded = Some(encoded);
        self
    }
}

impl Decoder for CausalDecoder<'_> {
    fn next_logits(&mut self, new: &ModelInput) -> Result<Tensor> {
        if let (Some(copied), Some(ids)) = (&mut self.copied, &new.input_ids)
            && copied.is_empty()
        {
            copied.extend(0..ids.dim(0)?);
        }
        match &self.encoded {
            Some(encoded) => {
                let new = new.clone();
                let new = new.with_memory(&encoded.hidden_states, encoded.mask.as_ref());
                self.model.next_logits(&new, &mut self.cache)
            }
            None => self.model.next_logits(new, &mut self.cache),
        }
    }

    fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        let Some(copied) = &mut self.copied else {
            self.cache.keep_sequences(sequences)?;
            return match &mut self.encoded {
                Some(encoded) => encoded.keep_sequences(sequences),
                None => Ok(()),
            };
        };
        let of_memory = attending(copied, sequences);
        let copies = sequences.iter().map(|&of| copied[of]);
        *copied = copies.collect();
        self.cache.take_sequences(sequences, of_memory.as_deref())?;
        if let Some(encoded) = &mut self.encoded {
            encoded.keep_sequences(of_memory.as_deref().unwrap_or(sequences))?;
        }
        Ok(())
    }

    fn copy_sequences(&mut self) -> Result<()> {
        self.copied = Some(Vec::new());
        self.forget();
        Ok(())
    }

    fn encoder_tokens(&self) -> Result<Option<Vec<Vec<u32>>>> {
        let Some(encoded) = &self.encoded else {
            return Ok(None);
        };
        match &encoded.input_ids {
            None => Ok(Some(Vec::new())),
            Some(ids) => Ok(Some(super::prompts(ids, None).map_err(Error::wrap)?)),
        }
    }

    fn forget(&mut self) {
        self.cache = match self.copied {
            Some(_) => self.model.new_cache().copying(),
            None => self.model.new_cache(),
        };
    }

    fn max_positions(&self) -> Option<usize> {
        max_positions(self.model)
    }

    fn renewed_behind(&self) -> usize {
        short_positions(self.model.config())
    }
}

/// Sequences in rising order that attend to the same as `taken`, one for each, if there are such: what the cache has of an
/// encoder's output then stays where it is.
fn attending(of: &[usize], taken: &[usize]) -> Option<Vec<usize>> {
    let mut next = 0;
    let found = taken.iter().map(|&sequence| {
        let place = (next..of.len()).find(|&place| of[place] == of[sequence])?;
        next = place + 1;
        Some(place)
    });
    found.collect()
}

/// How many positions a model has, if a table limits them.
pub fn max_positions(model: &Model) -> Option<usize> {
    let EmbeddingsConfig::Tokens(tokens) = &model.config().embeddings else {
        return None;
    };
    Some(tokens.positions?.n_positions())
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
