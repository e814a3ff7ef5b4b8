//! A sequence of blocks and their final norm.

use candle_blocks_kernels::memory::LargePages;
use candle_core::{DType, ModuleT, Result, Tensor, bail};

use std::{collections::HashMap, sync::Arc};

use crate::config::{MixerFacts, PaddedRows, Precision, StackConfig, getters};
use crate::layers::own::streams::side_by_side;
use crate::layers::packed::{Packing, check_evaluation};
use crate::layers::state::{Given, KvCache, Ledger, check_cached, without_graph};
use crate::layers::visit::{LayerPart, Visit, parts};
use crate::layers::{
    BlockStages, Dropout, DropoutSource, ForwardContext, Linear, Norm, ParameterSource,
    RelativeBias, RelativeEmbeddings, TransformerBlock,
};
use crate::layers::{
    pass::{Origin, Pass},
    sublayer::StageRecorder,
};
use crate::ops::{Constants, MemoryKeeper, Ranks, Route, Value, with_team};

mod inputs;
mod shared;

pub(crate) use shared::SharedParts;

/// The stack of an encoder or decoder: its blocks in order, and the final norm if the family has one.
///
/// Names in a `VarBuilder`: `blocks.{i}.…` as in [`TransformerBlock`], `final_norm`, `relative_embeddings`,
/// `layer_inputs.{projection,norm}`, `altup.{spread,merge}.{i}`, and `relative_bias` or, if each block has its own,
/// `blocks.{i}.relative_bias`.
#[derive(Clone, Debug)]
pub struct Stack {
    pub(crate) blocks: Vec<TransformerBlock>,
    /// The index of the block that runs at each layer.
    layers: Vec<usize>,
    #[doc(hidden)]
    pub shared: SharedParts,
    layer_drop: Dropout,
    output_dropout: Dropout,
    /// Constants that passes leave on a device for later passes.
    constants: Constants,
    /// Keeps the memory of a packed stack's hidden states between passes.
    _keeper: Option<Arc<MemoryKeeper>>,
}

impl Stack {
    /// Creates the stack with every block and the shared layers from `vb`.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(config: &StackConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let block = |(i, block)| TransformerBlock::new(block, vb.pp("blocks").pp(i));
        let blocks = config.blocks.iter().enumerate().map(block);
        let dropout = |p| Dropout::new(p, DropoutSource::default());
        Ok(Self {
            blocks: blocks.collect::<Result<_>>()?,
            layers: config.layers.clone(),
            shared: SharedParts::new(config, &vb)?,
            layer_drop: dropout(config.layer_drop)?,
            output_dropout: dropout(config.output_dropout)?,
            constants: Constants::default(),
            _keeper: None,
        })
    }

    /// Creates the stack like [`Self::new`], with packed weights, for inference on the CPU. Each block is packed
    /// before the next is read, so at most one block is in memory unpacked.
    ///
    /// # Errors
    /// Same as [`Self::new`] and [`Self::pack`].
    pub fn packed<'p>(
        config: &StackConfig,
        vb: impl Into<ParameterSource<'p>>,
        precision: Precision,
    ) -> Result<Self> {
        Self::packed_part(config, vb.into(), precision, None)
    }

    /// Creates the stack like [`Self::packed`]. With `ranks`, its blocks are this rank's shards.
    #[doc(hidden)]
    pub fn packed_part(
        config: &StackConfig,
        vb: ParameterSource,
        precision: Precision,
        ranks: Option<&Arc<Ranks>>,
    ) -> Result<Self> {
        config.validate()?;
        let shared = SharedParts::new(config, &vb)?;
        let packing = Packing::new(precision)?;
        let packing = packing.with_relative(shared.relative_embeddings.as_ref())?;
        let blocks = config.blocks.iter().enumerate().map(|(i, block)| {
            let mut block = TransformerBlock::new(block, vb.pp("blocks").pp(i))?;
            if let Some(ranks) = ranks {
                block.divide(ranks);
            }
            block.packed(&packing.of_block(i))
        });
        let blocks = blocks.collect::<Result<_>>()?;
        packing.check_codes()?;
        Ok(Self {
            blocks,
            layers: config.layers.clone(),
            shared: shared.packed(&packing)?,
            layer_drop: Dropout::none(),
            output_dropout: Dropout::none(),
            constants: Constants::default(),
            _keeper: Some(Arc::default()),
        })
    }

    /// Returns the stack with packed blocks and shared layers.
    pub(crate) fn with_packed(&self, blocks: Vec<TransformerBlock>, shared: SharedParts) -> Self {
        Self {
            blocks,
            shared,
            _keeper: Some(Arc::default()),
            ..self.clone()
        }
    }

    /// Returns true if the stack's weights are packed.
    #[doc(hidden)]
    pub fn is_packed(&self) -> bool {
        self.blocks.first().is_some_and(TransformerBlock::is_packed)
    }

    /// Returns true if the stack does not compute rows of padding.
    #[doc(hidden)]
    pub fn leaves_out_padding(&self) -> bool {
        self.is_packed() && self.mixers().all(|of| of.padding == PaddedRows::LeftOut)
    }

    getters! {
        /// The distinct blocks.
        blocks(&self) -> &[TransformerBlock] => &self.blocks;
        /// The index of the block that runs at each layer; ALBERT runs one block many times.
        layers(&self) -> &[usize] => &self.layers;
        /// The relative position bias that all blocks share, or the biases of the single blocks, if any.
        relative_biases(&self) -> &[RelativeBias] => self.shared.relative_biases.as_slice();
        /// The embeddings of relative distances that all blocks share, if any.
        relative_embeddings(&self) -> Option<&RelativeEmbeddings> => self.shared.relative_embeddings.as_ref();
        /// The norm after the last block, if any.
        final_norm(&self) -> Option<&Norm> => self.shared.final_norm.as_ref();
        /// The dropout of whole layers in training.
        layer_drop(&self) -> &Dropout => &self.layer_drop;
    }

    /// Returns all linear layers with their roles (`blocks.3.attention.query`), with those of per-layer inputs and
    /// AltUp streams.
    pub fn linears(&self) -> impl Iterator<Item = (String, &Linear)> {
        let mut linears = Vec::new();
        self.visit("", &mut |role, part| {
            if let LayerPart::Linear(linear) = part {
                linears.push((role.to_string(), linear));
            }
        });
        linears.into_iter()
    }

    /// Computes the output in evaluation mode, without a mask. Shapes are those in [`Self::forward_with`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }

    /// Runs all blocks and the final norm, and returns transformers' `last_hidden_state`.
    ///
    /// # Shapes
    /// The embeddings `[batch, seq, d_model]`, to the same shape. `[seq, d_model]` is a single sequence.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`, the rank is above 3, or a mask does not fit.
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        let mut pass = self.pass(Pass::new(context, x.dims())?)?;
        if self.leaves_out_padding() {
            pass.leave_out_padding()?;
        }
        self.run(x.clone(), &pass, None, None)
    }

    /// Runs the stack like [`Self::forward_with`], and hands the intermediate results of every layer to `observer` as
    /// they are computed. This is the way to collect the hidden states of all layers. A layer that LayerDrop skips
    /// has no intermediate results.
    ///
    /// ```
    /// # use candle_blocks::{AttentionConfig, BlockConfig, FeedForwardConfig, ForwardContext, NormConfig};
    /// # use candle_blocks::{NormPlacement, Stack, StackConfig};
    /// # use candle_core::{DType, Device, Tensor};
    /// # let norm = NormConfig::layer_norm(8, 1e-5);
    /// # let (attention, feed_forward) = (AttentionConfig::new(8, 2)?, FeedForwardConfig::new(8));
    /// # let block = BlockConfig::new(attention, feed_forward, norm, NormPlacement::Pre);
    /// # let vb = candle_nn::VarBuilder::zeros(DType::F32, &Device::Cpu);
    /// # let stack = Stack::new(&StackConfig::uniform(block, 3, Some(norm)), vb)?;
    /// let x = Tensor::randn(0f32, 1., (1, 4, 8), &Device::Cpu)?;
    /// let mut hidden_states = vec![x.clone()];
    /// stack.observe(&x, &ForwardContext::evaluation(), |_layer, stages| {
    ///     hidden_states.push(stages.output().clone());
    ///     Ok(())
    /// })?;
    /// assert_eq!(hidden_states.len(), 1 + 3);
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Self::forward_with`]. An error of `observer` ends the pass and is returned.
    pub fn observe(
        &self,
        x: &Tensor,
        context: &ForwardContext,
        mut observer: impl FnMut(usize, &BlockStages) -> Result<()>,
    ) -> Result<Tensor> {
        let pass = self.pass(Pass::new(context, x.dims())?)?;
        self.run(x.clone(), &pass, None, Some(&mut observer))
    }

    /// Creates an empty cache for [`Self::forward_cached`].
    pub fn new_cache(&self) -> KvCache {
        // All layers share the pages: a step reads one layer after the other.
        let pages = LargePages::default();
        let layers = self
            .layers
            .iter()
            .map(|&block| self.blocks[block].new_state(&pages));
        KvCache::new(layers.collect())
    }

    /// Creates the cache that [`KvCache::to_tensors`] returned as tensors, on the device of this stack. Nothing in them says
    /// which weights computed it.
    ///
    /// # Errors
    /// If the tensors are not those of a cache of a stack like this one, packed to the same form of keys and values.
    pub fn cache_from_tensors(&self, tensors: &HashMap<String, Tensor>) -> Result<KvCache> {
        Given::all(tensors, |given| {
            let ledger = Ledger::restored(given)?;
            let mut cache = self.new_cache();
            for (i, (state, &block)) in cache.layers.iter_mut().zip(&self.layers).enumerate() {
                let given = given.at(format_args!("layers.{i}"));
                let block = &self.blocks[block];
                let shared = self.transformer_of(block).map(|of| &of.attention);
                block.restore(state, &given, &ledger, shared)?;
            }
            cache.ledger = ledger;
            Ok(cache)
        })
    }

    /// Computes the output for new positions. They follow the positions in `cache`, and are added to it.
    ///
    /// A sequence can be fed in chunks or token by token, with the same result as [`Self::forward_with`] on the whole
    /// sequence. The context's mask and positions cover only the new positions; the cache holds the earlier ones.
    /// With a sliding window, keys that no later query can see are dropped. Rotary scalings that depend on the length
    /// (dynamic NTK, LongRope) rotate each key by the length at its time, as in transformers. The [crate's front
    /// page](crate#decoding) has an example with prompts of unequal lengths.
    ///
    /// The first call projects the encoder output. Later calls take its keys and values from the cache, and only
    /// check that the given encoder output has the same shape. Reset the cache before you attend to another encoder
    /// output.
    ///
    /// The output is detached, as under `torch.no_grad()`: a cache that kept the graph of every step would take
    /// memory that grows with the square of their number. An input that tracks gradients is refused. For gradients,
    /// use [`Self::forward_with`].
    ///
    /// # Shapes
    /// `[batch, new positions, d_model]` to the same shape.
    ///
    /// # Errors
    /// Same as [`Self::forward_with`]. Also if the attention of a block is not causal, the context has an additive
    /// mask or dropout on, the input or the encoder output tracks gradients, or the cache belongs to another stack or
    /// batch, or to an encoder output with another length. The cache is then unchanged.
    pub fn forward_cached(
        &self,
        x: &Tensor,
        context: &ForwardContext,
        cache: &mut KvCache,
    ) -> Result<Tensor> {
        self.after_cached(x.clone(), context, cache, Requested::All)
    }

    /// Computes the output for the last new position of each sequence, `[batch, 1, d_model]`, with the same bits as
    /// [`Self::forward_cached`]. Sampling the next token needs no more. For the other positions, the last block of a
    /// packed stack computes only keys and values.
    #[doc(hidden)]
    pub fn last_cached(
        &self,
        x: Tensor,
        context: &ForwardContext,
        cache: &mut KvCache,
    ) -> Result<Tensor> {
        let y = self.after_cached(x, context, cache, Requested::Last)?;
        y.narrow(1, y.dim(1)?.saturating_sub(1), 1)
    }

    fn after_cached(
        &self,
        x: Tensor,
        context: &ForwardContext,
        cache: &mut KvCache,
        requested: Requested,
    ) -> Result<Tensor> {
        if self.is_packed() {
            check_evaluation(context.train())?;
        }
        let n_layers = (cache.layers.len(), self.layers.len());
        let sizes = check_cached(&x, context, n_layers, self.mixers())?;
        for (state, &block) in cache.layers.iter().zip(&self.layers) {
            let block = &self.blocks[block];
            let shared = self.transformer_of(block).map(|of| &of.attention);
            block.check_state(state, sizes.0, shared)?;
        }
        let encoder = context
            .encoder_output()
            .map(|encoder| &encoder.hidden_states);
        for (name, tensor) in [("input", Some(&x)), ("encoder_hidden_states", encoder)] {
            if tensor.is_some_and(Tensor::track_op) {
                bail!(
                    "stack: {name} tracks gradients, but a pass with a cache has no gradients; detach() it, or use forward_with"
                );
            }
        }
        let before = cache.ledger.clone();
        let added = |cache: &mut KvCache| {
            let keep = cache.ledger.extend(context.mask().padding_mask(), sizes)?;
            let seen = before.seen();
            let mut pass = self.pass(Pass::after(context, sizes, seen, keep.clone()))?;
            if self.is_packed() {
                pass.leave_out_padding_before()?;
                if let (Requested::Last, (batch, seq @ 2..)) = (requested, sizes)
                    && pass.unpadded.is_none()
                {
                    let last = Pass::after(context, (batch, 1), seen + seq - 1, keep);
                    let mut last = self.pass(last)?;
                    last.leave_out_padding_before()?;
                    pass.last = Some(Box::new(last));
                }
            }
            self.run(x, &pass, Some(cache), None)
        };
        match added(cache) {
            Ok(y) => Ok(without_graph(&y)),
            Err(error) => {
                cache.undo(before);
                Err(error)
            }
        }
    }

    /// Returns the pass with the parts that all blocks share: constants, relative position bias and relative
    /// embeddings.
    fn pass<'c>(&self, pass: Pass<'c>) -> Result<Pass<'c>> {
        let pass = pass.with_constants(&self.constants);
        pass.enter(self.shared.relative_biases.shared())?;
        pass.with_relative(self.relative_embeddings())
    }

    /// Computes the output for the requested positions. The memory of the input is free after the first block, unless
    /// the caller holds it.
    fn run(
        &self,
        x: Tensor,
        pass: &Pass,
        cache: Option<&mut KvCache>,
        observer: Option<&mut Observer>,
    ) -> Result<Tensor> {
        let (dims, dtype) = (x.dims().to_vec(), x.dtype());
        let rows = match &pass.unpadded {
            Some(unpadded) => unpadded.gathered(&x)?,
            None => x.clone(),
        };
        drop(x);
        let value = pass.value(self.origin(), &rows)?;
        drop(rows);
        // Without a cache, keys that layers share stay in a cache for this pass only.
        let has_own = self.is_packed() && cache.is_none() && self.shares_keys();
        let mut own = has_own.then(|| self.new_cache());
        let cache = cache.or(own.as_mut());
        // An observer may compute, so it must not find the threads occupied by a team.
        let has_team = observer.is_none() && matches!(value.route(), Route::Kernels);
        let work = || {
            self.apply(value, pass, cache, observer.map(|of| (of, dtype)))?
                .tensor()
        };
        let y = if has_team { with_team(work) } else { work() }?;
        let y = match &pass.unpadded {
            Some(unpadded) => unpadded.scattered(&y, dims)?,
            None => y,
        };
        y.to_dtype(dtype)
    }

    #[doc(hidden)]
    pub fn origin(&self) -> Origin {
        Origin::new("stack", self.is_packed())
    }

    fn apply(
        &self,
        x: Value,
        pass: &Pass,
        mut cache: Option<&mut KvCache>,
        mut observer: Option<(&mut Observer, DType)>,
    ) -> Result<Value> {
        let train = pass.context.train();
        let inputs = self.inputs_of_layers(&x, pass)?;
        let mut x = self.before_blocks(x, train)?;
        for (i, &block) in self.layers.iter().enumerate() {
            if self.skips(i, train)? {
                continue;
            }
            self.enter(i, pass, inputs.as_ref())?;
            let block = &self.blocks[block];
            let shared = block.mixer().inner().facts().shares_from;
            let cache = cache.as_deref_mut();
            let mut state = cache.map(|cache| cache.of_layer(i, shared));
            let Some((observer, dtype)) = &mut observer else {
                x = block.apply(x, pass, state.as_mut(), &mut StageRecorder::off())?;
                continue;
            };
            let (route, precision, mut recorder) = (x.route(), x.precision(), StageRecorder::on());
            let y = x
                .clone()
                .working(|| block.apply(x, pass, state.as_mut(), &mut recorder))?;
            let stages = block.recorded_stages(recorder, y)?;
            x = Value::on(route, precision, stages.hidden())?;
            observer(i, &stages.to_dtype(*dtype)?)?;
        }
        self.after_blocks(x, train)
    }

    /// Draws whether training skips layer `i`. The first layer of a stack with relative embeddings is never skipped, as in WavLM.
    #[doc(hidden)]
    pub fn skips(&self, i: usize, train: bool) -> Result<bool> {
        let is_kept = i == 0 && self.relative_embeddings().is_some();
        Ok(!is_kept && self.layer_drop.drops_all(train)?)
    }

    /// Returns true if a layer attends to the keys of another layer.
    fn shares_keys(&self) -> bool {
        self.mixers().any(|of| of.shares_from.is_some())
    }

    /// Returns the properties of each distinct block's mixer.
    fn mixers(&self) -> impl Iterator<Item = MixerFacts> {
        self.blocks.iter().map(TransformerBlock::facts)
    }

    /// Returns the first block's input: the stack's input, twice for Zamba's blocks, or the AltUp streams made from it.
    #[doc(hidden)]
    pub fn before_blocks(&self, x: Value, train: bool) -> Result<Value> {
        match &self.shared.streams {
            Some(streams) => streams.opened(&x, train),
            None if self.carries_input() => side_by_side([&x; 2].into_iter()),
            None => Ok(x),
        }
    }

    /// Merges AltUp streams or drops the stack's input, then applies the final norm and the output dropout.
    #[doc(hidden)]
    pub fn after_blocks(&self, x: Value, train: bool) -> Result<Value> {
        let x = match &self.shared.streams {
            Some(streams) => streams.merged(&x, train)?,
            None if self.carries_input() => x.columns(0..x.width() / 2),
            None => x,
        };
        let x = match &self.shared.final_norm {
            Some(norm) => norm.apply_in_place(x)?,
            None => x,
        };
        self.output_dropout.apply_to(x, train)
    }
}

/// The positions whose output is requested.
#[derive(Clone, Copy)]
enum Requested {
    All,
    /// The last position of each sequence.
    Last,
}

/// A callback for the intermediate results of each layer.
type Observer<'a> = dyn FnMut(usize, &BlockStages) -> Result<()> + 'a;

parts!(Stack:
    Self {
        blocks, shared: SharedParts { layer_inputs, streams: altup, .. }, layer_drop, output_dropout, ..
    } => [layer_drop, output_dropout] [blocks, layer_inputs, altup]);

impl ModuleT for Stack {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation().with_train(train))
    }
}
