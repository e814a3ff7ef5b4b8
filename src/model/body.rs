//! The blocks of a model, trainable or packed.

use candle_core::{Result, Tensor, bail};

use crate::layers::{BlockStages, ForwardContext, KvCache, Stack};
use crate::packed::{PackedKvCache, PackedStack};

/// The blocks of a model, in one form.
#[derive(Clone, Debug)]
pub(super) enum Body {
    /// On any device, with gradients.
    Plain(Box<Stack>),
    /// For inference on the CPU.
    Packed(Box<PackedStack>),
}

/// The keys and values of earlier positions, and how many tokens of each sequence were counted.
#[derive(Clone, Debug)]
pub struct ModelCache {
    pub(super) keys_and_values: KeysAndValues,
    pub(super) counted: Vec<u32>,
}

#[derive(Clone, Debug)]
pub(super) enum KeysAndValues {
    Plain(KvCache),
    Packed(PackedKvCache),
}

impl ModelCache {
    /// The number of positions in it.
    pub fn seen(&self) -> usize {
        match &self.keys_and_values {
            KeysAndValues::Plain(cache) => cache.seen(),
            KeysAndValues::Packed(cache) => cache.seen(),
        }
    }

    /// Goes on with these sequences of the batch alone, in this order, which is that of the batch.
    ///
    /// # Errors
    /// If one is not in the batch, or they are in another order. Nothing is dropped then.
    pub fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        match &mut self.keys_and_values {
            KeysAndValues::Plain(cache) => cache.keep_sequences(sequences)?,
            KeysAndValues::Packed(cache) => cache.keep_sequences(sequences)?,
        }
        self.take_counts(sequences);
        Ok(())
    }

    /// Makes an empty cache one that [`Self::take_sequences`] can be called on.
    pub(crate) fn copying(mut self) -> Self {
        self.keys_and_values = match self.keys_and_values {
            KeysAndValues::Packed(cache) => KeysAndValues::Packed(cache.copying()),
            plain => plain,
        };
        self
    }

    /// Goes on with copies of these sequences of the batch, in this order; of an encoder's output, with that of the sequences
    /// `of_memory`, which rise and attend to the same as they, if there are such.
    ///
    /// # Errors
    /// If one is not in the batch, or the cache does not copy sequences.
    pub(crate) fn take_sequences(
        &mut self,
        sequences: &[usize],
        of_memory: Option<&[usize]>,
    ) -> Result<()> {
        match &mut self.keys_and_values {
            KeysAndValues::Plain(cache) => cache.take_sequences(sequences, of_memory)?,
            KeysAndValues::Packed(cache) => cache.take_sequences(sequences, of_memory)?,
        }
        self.take_counts(sequences);
        Ok(())
    }

    fn take_counts(&mut self, sequences: &[usize]) {
        let counted = sequences.iter().filter_map(|&row| self.counted.get(row));
        self.counted = counted.copied().collect();
    }
}

impl Body {
    pub fn new_cache(&self) -> ModelCache {
        let keys_and_values = match self {
            Self::Plain(stack) => KeysAndValues::Plain(stack.new_cache()),
            Self::Packed(stack) => KeysAndValues::Packed(stack.new_cache()),
        };
        ModelCache {
            keys_and_values,
            counted: Vec::new(),
        }
    }

    /// The blocks' output without a cache; with an observer, each layer is handed to it.
    pub fn blocks(
        &self,
        x: &Tensor,
        context: &ForwardContext,
        observer: Option<&mut Observer>,
    ) -> Result<Tensor> {
        match (self, observer) {
            (Self::Plain(stack), None) => stack.forward_with(x, context),
            (Self::Plain(stack), Some(observer)) => stack.observe(x, context, observer),
            (Self::Packed(stack), None) => stack.forward_with(x, context),
            (Self::Packed(stack), Some(observer)) => stack.observe(x, context, observer),
        }
    }

    /// The blocks' output for the last of each sequence's positions behind those in the cache, `[batch, 1, d_model]`.
    pub fn last_cached(
        &self,
        x: Tensor,
        context: &ForwardContext,
        cache: &mut KeysAndValues,
    ) -> Result<Tensor> {
        let hidden = match (self, cache) {
            (Self::Plain(stack), KeysAndValues::Plain(cache)) => {
                stack.forward_cached(&x, context, cache)?
            }
            (Self::Packed(stack), KeysAndValues::Packed(cache)) => {
                stack.last_cached(x, context, cache)?
            }
            _ => bail!("the cache is another model's: make one by Model::new_cache"),
        };
        hidden.narrow(1, hidden.dim(1)?.saturating_sub(1), 1)
    }
}

/// Receives the intermediate results of each layer.
pub(super) type Observer<'a> = dyn FnMut(usize, &BlockStages) -> Result<()> + 'a;
