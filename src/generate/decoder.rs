//! The trait for models in generation: new tokens in, logits out.

use std::sync::Arc;

use candle_core::{DType, Error, Result, Tensor, bail};

use crate::config::{BlockConfig, EmbeddingsConfig, ModelConfig, Position, RotaryScaling};
use crate::model::{Encoded, Model, ModelCache, ModelInput};

/// A model and its cache, for generation.
pub trait Decoder {
    /// Returns the logits `[batch, n_tokens]` after the last of some new tokens, which follow all tokens before. The mask
    /// covers the new tokens.
    ///
    /// # Errors
    /// If the model cannot compute them; the new tokens are then not added.
    fn next_logits(&mut self, new: &ModelInput) -> Result<Tensor>;

    /// Keeps only these sequences of the batch, in ascending order. After [`Self::copy_sequences`], they may be in any
    /// order, and repeated.
    ///
    /// # Errors
    /// If memory for them cannot be allocated.
    fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()>;

    /// Computes the tokens of a new sequence, which joins the batch after the others. Returns its next logits
    /// `[1, n_tokens]`.
    ///
    /// # Errors
    /// If the decoder does not support it, or the model cannot compute them; the batch is then unchanged.
    fn join(&mut self, new: &ModelInput) -> Result<Tensor> {
        let _ = new;
        bail!("this decoder cannot add sequences to a batch; start another generation")
    }

    /// Prepares to copy sequences for beam search; call it before the first token.
    ///
    /// # Errors
    /// If the decoder cannot copy sequences.
    fn copy_sequences(&mut self) -> Result<()> {
        bail!("this decoder cannot copy sequences, which beam search needs; set num_beams to 1")
    }

    /// Returns the encoder's input tokens for each sequence, empty if its input was something else; `None` without an
    /// encoder.
    ///
    /// # Errors
    /// If they cannot be read.
    fn encoder_tokens(&self) -> Result<Option<Vec<Vec<u32>>>> {
        Ok(None)
    }

    /// Forgets all tokens.
    fn forget(&mut self);

    /// Prepares to compute `sequence` as the only sequence of the batch: keeps the first tokens that it shares with the
    /// earlier ones, except its last token, and forgets the others. Returns the number of kept tokens; 0 unless the decoder
    /// keeps any.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn keep_prefix(&mut self, sequence: &[u32]) -> Result<usize> {
        let _ = sequence;
        self.forget();
        Ok(0)
    }

    /// Returns the model's maximum number of positions, if it has one.
    fn max_positions(&self) -> Option<usize> {
        None
    }

    /// Returns the length beyond which keys in the cache are no longer valid: when the longest sequence in the batch passes
    /// it, in either direction, all keys are recomputed.
    fn renewed_after(&self) -> usize {
        usize::MAX
    }
}

/// A decoder with its own cache, and optionally an encoder's output that it attends to.
/// [`Generator::start`](crate::generate::Generator::start) makes one.
#[derive(Clone, Debug)]
pub struct CausalDecoder {
    model: Arc<Model>,
    cache: ModelCache,
    encoded: Option<Encoded>,
    /// The tokens in the cache, if the batch is one sequence without padding.
    tokens: Vec<u32>,
    /// If sequences are copied: the index of the encoder's sequence to which each one attends.
    copied: Option<Vec<usize>>,
}

impl CausalDecoder {
    /// Starts with an empty cache.
    pub fn new(model: impl Into<Arc<Model>>) -> Self {
        let model = model.into();
        Self {
            cache: model.new_cache(),
            model,
            encoded: None,
            tokens: Vec::new(),
            copied: None,
        }
    }

    /// Attends to the encoder output of a [`Seq2Seq`](crate::model::Seq2Seq) whose decoder this is.
    pub fn with_encoder_output(mut self, encoded: Encoded) -> Self {
        self.encoded = Some(encoded);
        self
    }

    /// Starts with the cache of one sequence, of which these are the tokens, for example one that
    /// [`Model::load_cache`] read: a prompt that begins like it is computed from there on.
    ///
    /// # Errors
    /// If the cache has several sequences, or another number of positions than there are tokens.
    pub fn with_cache(mut self, cache: ModelCache, tokens: Vec<u32>) -> Result<Self> {
        let (batch, seen) = (cache.batch(), cache.seen());
        if seen != tokens.len() || batch > 1 {
            bail!(
                "the cache has {batch} sequences of {seen} positions, expected one with the {} tokens given",
                tokens.len()
            );
        }
        (self.cache, self.tokens) = (cache, tokens);
        Ok(self)
    }
}

impl CausalDecoder {
    /// Returns whether the cache can serve another sequence of this model.
    pub(super) fn can_continue(&self, model: &Arc<Model>) -> bool {
        Arc::ptr_eq(&self.model, model) && self.encoded.is_none() && self.copied.is_none()
    }
}

impl Decoder for CausalDecoder {
    fn next_logits(&mut self, new: &ModelInput) -> Result<Tensor> {
        if let (Some(copied), Some(ids)) = (&mut self.copied, &new.input_ids)
            && copied.is_empty()
        {
            copied.extend(0..ids.dim(0)?);
        }
        let Some(encoded) = &self.encoded else {
            let is_whole = self.tokens.len() == self.cache.seen();
            let logits = self.model.next_logits(new, &mut self.cache)?;
            match &new.input_ids {
                Some(ids) if is_whole && ids.dim(0)? == 1 && new.attention_mask.is_none() => {
                    let ids = ids.to_dtype(DType::U32)?.flatten_all()?;
                    self.tokens.extend(ids.to_vec1::<u32>()?);
                }
                _ => self.tokens.clear(),
            }
            return Ok(logits);
        };
        let new = new.clone();
        let new = new.with_encoder_output(&encoded.hidden_states, encoded.mask.as_ref());
        self.model.next_logits(&new, &mut self.cache)
    }

    fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        let Some(copied) = &mut self.copied else {
            self.cache.keep_sequences(sequences)?;
            return match &mut self.encoded {
                Some(encoded) => encoded.keep_sequences(sequences),
                None => Ok(()),
            };
        };
        let encoder_rows = attending(copied, sequences);
        let copies = sequences.iter().map(|&of| copied[of]);
        *copied = copies.collect();
        self.cache
            .take_sequences(sequences, encoder_rows.as_deref())?;
        if let Some(encoded) = &mut self.encoded {
            encoded.keep_sequences(encoder_rows.as_deref().unwrap_or(sequences))?;
        }
        Ok(())
    }

    fn join(&mut self, new: &ModelInput) -> Result<Tensor> {
        if self.encoded.is_some() {
            bail!("a sequence cannot join a batch that attends to an encoder output");
        }
        let mut cache = self.model.new_cache();
        let logits = self.model.next_logits(new, &mut cache)?;
        self.cache.join(&cache)?;
        self.tokens.clear();
        Ok(logits)
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

    fn keep_prefix(&mut self, sequence: &[u32]) -> Result<usize> {
        let pairs = self.tokens.iter().zip(sequence);
        let shared = pairs.take_while(|(known, token)| known == token).count();
        let shared = shared.min(sequence.len().saturating_sub(1));
        let longest = self.tokens.len().max(sequence.len());
        let is_valid = rotation_changes_after(self.model.config()).is_none_or(|n| longest <= n);
        match self.cache.rewind(if is_valid { shared } else { 0 }) {
            0 => self.forget(),
            reached => self.tokens.truncate(reached),
        }
        Ok(self.tokens.len())
    }

    fn forget(&mut self) {
        self.tokens.clear();
        self.cache = self.model.new_cache();
    }

    fn max_positions(&self) -> Option<usize> {
        max_positions(&self.model)
    }

    fn renewed_after(&self) -> usize {
        short_positions(self.model.config())
    }
}

/// Returns sequences in ascending order that attend to the same encoder output as `taken`, one for each, if they exist. Then
/// the cached encoder output can stay in place.
fn attending(of: &[usize], taken: &[usize]) -> Option<Vec<usize>> {
    let mut next = 0;
    let found = taken.iter().map(|&sequence| {
        let place = (next..of.len()).find(|&place| of[place] == of[sequence])?;
        next = place + 1;
        Some(place)
    });
    found.collect()
}

/// Returns a model's maximum number of positions, if a table limits it.
pub fn max_positions(model: &Model) -> Option<usize> {
    let EmbeddingsConfig::Tokens(tokens) = &model.config().embeddings else {
        return None;
    };
    Some(tokens.positions?.n_positions())
}

/// Returns the number of positions up to which LongRoPE uses its short factors.
fn short_positions(config: &ModelConfig) -> usize {
    let of = |scaling: &RotaryScaling| match *scaling {
        RotaryScaling::LongRope {
            original_positions, ..
        } => Some(original_positions),
        _ => None,
    };
    scalings(config).find_map(of).unwrap_or(usize::MAX)
}

/// Returns the length beyond which rotary angles depend on the length of the sequence, if they do.
fn rotation_changes_after(config: &ModelConfig) -> Option<usize> {
    let of = |scaling: &RotaryScaling| match *scaling {
        RotaryScaling::DynamicNtk { max_positions, .. } => Some(max_positions),
        RotaryScaling::LongRope {
            original_positions, ..
        } => Some(original_positions),
        _ => None,
    };
    scalings(config).filter_map(of).min()
}

fn scalings(config: &ModelConfig) -> impl Iterator<Item = &RotaryScaling> {
    let blocks = config.stack.blocks.iter();
    let attentions = blocks.flat_map(BlockConfig::attention);
    attentions.filter_map(|attention| match &attention.position {
        Position::Rotary(rotary) => Some(&rotary.scaling),
        _ => None,
    })
}
