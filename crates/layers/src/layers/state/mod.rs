//! The state that decoding carries from call to call, so that each position is computed only once.

use std::collections::HashMap;

use candle_core::{Device, Result, Tensor, bail};

pub(in crate::layers) mod cached_rows;
mod computed;
mod encoder;
mod latents;
mod layer;
mod ledger;
mod named;
mod panels;
mod recurrent;
mod rows;
mod shape;

#[doc(hidden)]
pub use cached_rows::of_sequences;
pub(crate) use encoder::EncoderState;
pub(crate) use layer::{BlockState, BlockStateMut, LayerState};
pub(crate) use ledger::{Ledger, check_cached};
pub(crate) use named::Given;
use named::Named;

use crate::layers::visit::join;
pub(crate) use panels::{OwnRows, Panels};
pub(crate) use recurrent::Recurrent;
pub(crate) use shape::{CacheShape, Cached};

/// The key/value cache of a whole stack, created by [`Stack::new_cache`](crate::Stack::new_cache).
///
/// The cache holds keys, values and padding mask of the positions seen so far, without their graph. New positions are
/// appended. When the buffer is full, its size doubles. A packed stack caches keys and values in the layout that
/// attention reads. With a sliding window, positions that no later query can see are dropped. Latent attention caches
/// the latents of every position instead of keys and values. A recurrent layer has a state of one size, after the last
/// call and before it. A clone is independent, so several continuations can
/// start from one prompt. Clones of a packed stack's cache share the memory of the positions that they have in common.
#[derive(Clone, Debug)]
pub struct KvCache {
    pub(super) layers: Vec<BlockState>,
    pub(super) ledger: Ledger,
}

impl KvCache {
    /// Creates the cache from its layers' empty states.
    pub(super) fn new(layers: Vec<BlockState>) -> Self {
        Self {
            layers,
            ledger: Ledger::default(),
        }
    }

    /// Returns how many sequences it has.
    pub fn batch(&self) -> usize {
        self.ledger.batch()
    }

    /// Returns how many positions it has seen so far.
    pub fn seen(&self) -> usize {
        self.ledger.seen()
    }

    /// Returns the size in bytes of the cached keys and values (or latents) and of states, with those of the encoder output. Unused
    /// capacity is not counted.
    pub fn bytes(&self) -> usize {
        let bytes = |layer: &BlockState| layer.mixer.bytes() + layer.encoder.bytes();
        self.layers.iter().map(bytes).sum()
    }

    /// Removes all positions. The cache of a packed stack keeps its memory for the next sequences.
    pub fn reset(&mut self) {
        self.ledger = Ledger::default();
        self.layers.iter_mut().for_each(BlockState::reset);
    }

    /// Keeps only the given sequences of the batch, in their present order.
    ///
    /// # Errors
    /// If a sequence is not in the batch, or the order differs from the batch's. The cache is then unchanged.
    pub fn keep_sequences(&mut self, sequences: &[usize]) -> Result<()> {
        self.ledger.keep_sequences(sequences)?;
        self.layers.iter_mut().try_for_each(|layer| {
            layer.mixer.take_sequences(sequences)?;
            layer.encoder.take_sequences(sequences)
        })
    }

    /// Returns a cache with the given sequences, in this order; one that is given several times can be continued in as
    /// many ways. In a packed stack, they share the memory of the positions that they have in common.
    ///
    /// # Errors
    /// If a sequence is not in the batch.
    pub fn fork(&self, sequences: &[usize]) -> Result<Self> {
        let mut fork = self.clone();
        fork.take_sequences(sequences, None)?;
        Ok(fork)
    }

    /// Appends another cache's sequences, so that the next calls compute all sequences. Both caches belong to this stack.
    /// [`Self::seen`] is then the larger number: positions before a shorter sequence count as padding, and take no
    /// memory in a packed stack.
    ///
    /// # Errors
    /// If the cache belongs to another stack, or its encoder output has another length. Both are then unchanged.
    pub fn join(&mut self, other: &Self) -> Result<()> {
        if self.layers.len() != other.layers.len() {
            return different_stacks();
        }
        let is_empty = |of: &Self| of.seen() == 0 || of.ledger.batch() == 0;
        if is_empty(other) {
            bail!("the cache to join is empty; compute its sequences first");
        }
        if is_empty(self) {
            *self = other.clone();
            return Ok(());
        }
        let device = self.layers.iter().find_map(|layer| layer.mixer.device());
        let device = device.unwrap_or(Device::Cpu);
        let ledger = self.ledger.join(&other.ledger, &device)?;
        let paddings = [self, other].map(|of| ledger.seen() - of.seen());
        let mut layers = self.layers.clone();
        for (own, new) in layers.iter_mut().zip(&other.layers) {
            own.join(new.clone(), paddings)?;
        }
        (self.layers, self.ledger) = (layers, ledger);
        Ok(())
    }

    /// Replaces the batch by copies of the given sequences, in this order. The encoder output is taken from the
    /// sequences `encoder_rows`, if given, which rise and may need fewer copies.
    ///
    /// # Errors
    /// If a sequence is not in the batch.
    #[doc(hidden)]
    pub fn take_sequences(
        &mut self,
        sequences: &[usize],
        encoder_rows: Option<&[usize]>,
    ) -> Result<()> {
        let batch = self.ledger.batch();
        self.ledger.take_sequences(sequences)?;
        let is_same = encoder_rows.is_some_and(|of| of.len() == batch);
        self.layers.iter_mut().try_for_each(|layer| {
            layer.mixer.take_sequences(sequences)?;
            match (is_same, encoder_rows) {
                (true, _) => Ok(()),
                (false, Some(rows)) => layer.encoder.take_sequences(rows),
                (false, None) => layer.encoder.take_sequences(sequences),
            }
        })
    }

    /// Goes back to the first `to` positions, for example when a speculative draft is rejected, or to fewer if a
    /// layer's state does not reach `to`. Returns the number of positions that remain: compute the others again. With
    /// 0, also the keys and values of the encoder output are removed. The cache keeps its memory.
    ///
    /// With a sliding window that has dropped positions, only the positions of the last successful call can be
    /// removed; further back, no position remains. The state of a recurrent layer (a short convolution) goes back to the
    /// positions before the last successful call, or to none.
    ///
    /// ```
    /// # use candle_blocks::{AttentionConfig, BlockConfig, FeedForwardConfig, ForwardContext, NormConfig};
    /// # use candle_blocks::{NormPlacement, Stack, StackConfig};
    /// # use candle_core::{DType, Device, Tensor};
    /// # let norm = NormConfig::layer_norm(8, 1e-5);
    /// # let attention = AttentionConfig::new(8, 2)?.causal();
    /// # let block = BlockConfig::new(attention, FeedForwardConfig::new(8), norm, NormPlacement::Pre);
    /// # let vb = candle_nn::VarBuilder::zeros(DType::F32, &Device::Cpu);
    /// # let stack = Stack::new(&StackConfig::uniform(block, 3, Some(norm)), vb)?;
    /// let (mut cache, context) = (stack.new_cache(), ForwardContext::evaluation());
    /// let draft = Tensor::randn(0f32, 1., (1, 6, 8), &Device::Cpu)?;
    /// stack.forward_cached(&draft, &context, &mut cache)?;
    /// // Four positions of the draft are accepted.
    /// let reached = cache.rewind(4);
    /// let again = draft.narrow(1, reached, 4 - reached)?;
    /// if reached < 4 {
    ///     stack.forward_cached(&again, &context, &mut cache)?;
    /// }
    /// assert_eq!(cache.seen(), 4);
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    pub fn rewind(&mut self, to: usize) -> usize {
        let mut reached = to.min(self.seen());
        loop {
            // Where one layer goes back further, the others follow.
            let layers = self.layers.iter().map(|layer| layer.mixer.reaches(reached));
            let next = layers.fold(reached, usize::min);
            if next == reached {
                break;
            }
            reached = next;
        }
        match self.ledger.truncate(reached) {
            Ok(()) if reached > 0 => self.forget_from(reached),
            // Without its mask, no position can stay.
            _ => self.reset(),
        }
        self.seen()
    }

    /// Returns everything in the cache as named tensors, which
    /// [`Stack::cache_from_tensors`](crate::Stack::cache_from_tensors) reads. Keys and values are rows in the type in which
    /// they are kept, whatever the instruction set.
    ///
    /// ```
    /// # use candle_blocks::{AttentionConfig, BlockConfig, FeedForwardConfig, ForwardContext, NormConfig};
    /// # use candle_blocks::{NormPlacement, Stack, StackConfig};
    /// # use candle_core::{DType, Device, Tensor};
    /// # let norm = NormConfig::layer_norm(8, 1e-5);
    /// # let attention = AttentionConfig::new(8, 2)?.causal();
    /// # let block = BlockConfig::new(attention, FeedForwardConfig::new(8), norm, NormPlacement::Pre);
    /// # let vb = candle_nn::VarBuilder::zeros(DType::F32, &Device::Cpu);
    /// # let stack = Stack::new(&StackConfig::uniform(block, 3, Some(norm)), vb)?;
    /// let (mut cache, context) = (stack.new_cache(), ForwardContext::evaluation());
    /// let prompt = Tensor::randn(0f32, 1., (1, 6, 8), &Device::Cpu)?;
    /// stack.forward_cached(&prompt, &context, &mut cache)?;
    /// let file = std::env::temp_dir().join("prompt-cache.safetensors");
    /// candle_core::safetensors::save(&cache.to_tensors()?, &file)?;
    /// let tensors = candle_core::safetensors::load(&file, &Device::Cpu)?;
    /// assert_eq!(stack.cache_from_tensors(&tensors)?.seen(), 6);
    /// # std::fs::remove_file(file).unwrap();
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// If a device fails.
    pub fn to_tensors(&self) -> Result<HashMap<String, Tensor>> {
        let mut all = Named::new();
        self.ledger.store(&mut all)?;
        for (i, layer) in self.layers.iter().enumerate() {
            let prefix = format!("layers.{i}");
            layer.mixer.store(&prefix, &mut all)?;
            layer.encoder.store(&join(&prefix, "encoder"), &mut all)?;
        }
        Ok(all)
    }

    fn forget_from(&mut self, seen: usize) {
        let of_sequences = self.ledger.of_sequences(seen);
        for layer in &mut self.layers {
            layer.forget_from(seen, &of_sequences);
        }
    }

    /// Returns the states that a layer reads and writes. `shared` is the earlier layer whose state its mixer reads.
    pub(super) fn of_layer(&mut self, layer: usize, shared: Option<usize>) -> BlockStateMut<'_> {
        let (before, from) = self.layers.split_at_mut(layer);
        let BlockState { mixer, encoder } = &mut from[0];
        BlockStateMut {
            mixer: match shared {
                Some(of) => &mut before[of].mixer,
                None => mixer,
            },
            encoder,
        }
    }

    /// Restores the state from before a failed call, whichever layer the call had reached.
    pub(super) fn undo(&mut self, before: Ledger) {
        let seen = before.seen();
        self.ledger = before;
        self.forget_from(seen);
    }
}

/// Replaces items by those with the given indices, in this order. An item that is needed several times is cloned.
fn reordered<T: Clone>(items: &mut Vec<T>, indices: &[usize]) {
    let mut old: Vec<Option<T>> = items.drain(..).map(Some).collect();
    for (i, &of) in indices.iter().enumerate() {
        let is_last = !indices[i + 1..].contains(&of);
        items.extend(match is_last {
            true => old[of].take(),
            false => old[of].clone(),
        });
    }
}

/// Detaches a tensor of a cached pass. candle has no `no_grad`: with variables, each step would keep the graph of all
/// earlier steps, in memory that grows with the square of their number.
pub(super) fn without_graph(tensor: &Tensor) -> Tensor {
    tensor.detach()
}

fn different_stacks<T>() -> Result<T> {
    bail!("the caches belong to different stacks; join caches that new_cache of one stack made")
}

fn wrong_stack<T>() -> Result<T> {
    bail!(
        "the cache belongs to another stack: only one of the two is packed; make a cache with new_cache"
    )
}
