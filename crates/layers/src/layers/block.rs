//! The transformer block: attention and feed-forward, each a residual sublayer.

use candle_blocks_kernels::memory::LargePages;
use candle_core::{ModuleT, Result, Tensor, bail};

use crate::config::{
    AltUpConfig, BlockConfig, MixerFacts, NormPlacement, ParallelNorm, Topology, getters,
};
use crate::layers::{
    Attention, BlockFeedForward, ForwardContext, Mixer, ParameterSource, Sublayer, SublayerNorm,
    state::{BlockState, BlockStateMut, EncoderState, Given, LayerState, Ledger},
};
use crate::layers::{
    own::OwnParts,
    pass::{Origin, Pass},
    sublayer::StageRecorder,
    visit::parts,
};
use crate::ops::Value;

mod parallel;
mod stages;

pub use stages::BlockStages;

/// One transformer block: a [`Mixer`] (usually self-attention), optional cross-attention and a feed-forward, each a residual
/// [`Sublayer`], either in sequence or in parallel. A block of one sublayer has a mixer or a feed-forward alone.
///
/// Names in a `VarBuilder`: `attention.{query,key,value,output}` or `attention.convolution[.input,.output]`, `attention_norm`,
/// `feed_forward.{up,down[,gate]}`, `feed_forward_norm`, and `cross_attention…` as `attention…`; `layer_input.{gate,output}`,
/// `layer_input_output_norm` and `output_scale.weight` `[1]`; `laurel.{down,up,norm}`;
/// `altup.{router_norm,router,prediction,correction,input_scale}`; `second_attention_norm`; `adapter.{up,down}` and
/// `adapter_norm`; `transformer_output` and `transformer.{attention_norm,attention,feed_forward_norm,gate,up,down,adapters.{i}}`.
///
/// ```
/// use candle_blocks::{AttentionConfig, BlockConfig, FeedForwardConfig, NormConfig, NormPlacement};
/// use candle_blocks::{AttentionMask, ForwardContext, TransformerBlock};
/// use candle_core::{DType, Device, Tensor};
/// use candle_nn::{VarBuilder, VarMap};
/// let config = BlockConfig::new(
///     AttentionConfig::new(8, 2)?,
///     FeedForwardConfig::new(8),
///     NormConfig::layer_norm(8, 1e-12),
///     NormPlacement::Post, // BERT
/// );
/// let parameters = VarMap::new();
/// let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
/// let block = TransformerBlock::new(&config, vb)?;
/// let x = Tensor::randn(0f32, 1., (2, 3, 8), &Device::Cpu)?; // [batch, seq, d_model]
/// let mask = AttentionMask::padding(&Tensor::new(&[[1u8, 1, 1], [1, 1, 0]], &Device::Cpu)?)?;
/// let y = block.forward_with(&x, &ForwardContext::evaluation().with_mask(mask))?;
/// assert_eq!(y.dims(), [2, 3, 8]);
/// // Every parameter gets its gradient.
/// let gradients = y.sqr()?.sum_all()?.backward()?;
/// assert!(parameters.all_vars().iter().all(|var| gradients.get(var).is_some()));
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TransformerBlock {
    pub(crate) mixer: Sublayer<Mixer>,
    pub(crate) cross_attention: Option<Sublayer<Attention>>,
    pub(crate) feed_forward: Sublayer<BlockFeedForward>,
    pub(crate) own: OwnParts,
    pub(crate) topology: Topology,
}

/// The role of a block's mixer, whatever its kind.
const MIXER: &str = "attention";

impl TransformerBlock {
    /// Creates the block with parameters from `vb`, under the names above.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(config: &BlockConfig, vb: impl Into<ParameterSource<'p>>) -> Result<Self> {
        let vb = vb.into();
        config.validate()?;
        let residual = &config.residual;
        let placement = match config.topology {
            Topology::Parallel(ParallelNorm::Shared) => NormPlacement::None,
            _ => config.feed_forward_placement,
        };
        let (role, p) = ("feed_forward", residual.feed_forward_dropout);
        let inner = BlockFeedForward::new(&config.feed_forward, vb.pp(role))?;
        let feed_forward = match inner {
            BlockFeedForward::Absent { .. } => Sublayer::new(inner, SublayerNorm::None),
            _ => Sublayer::of_block(role, inner, placement, p, config, &vb)?,
        };
        let (placement, p) = (config.attention_placement, residual.attention_dropout);
        let mixer = Mixer::new(&config.mixer, vb.pp(MIXER))?;
        let mixer = match config.mixer.is_absent() {
            true => Sublayer::new(mixer, SublayerNorm::None),
            false => Sublayer::of_block(MIXER, mixer, placement, p, config, &vb)?,
        };
        let cross = config.cross_attention.as_ref().map(|cross| {
            let role = "cross_attention";
            let inner = Attention::new(cross, vb.pp(role))?;
            Sublayer::of_block(role, inner, placement, p, config, &vb)
        });
        let cross_attention = cross.transpose()?;
        Ok(Self {
            mixer,
            cross_attention,
            feed_forward,
            own: OwnParts::new(config, &vb)?,
            topology: config.topology,
        })
    }

    getters! {
        /// The mixer's sublayer, usually self-attention.
        mixer(&self) -> &Sublayer<Mixer> => &self.mixer;
        /// The cross-attention sublayer.
        cross_attention(&self) -> Option<&Sublayer<Attention>> => self.cross_attention.as_ref();
        /// The feed-forward sublayer.
        feed_forward(&self) -> &Sublayer<BlockFeedForward> => &self.feed_forward;
        /// The topology: sublayers in sequence or in parallel.
        topology(&self) -> Topology => self.topology;
    }

    /// Returns the properties by which a stack knows the block.
    pub(super) fn facts(&self) -> MixerFacts {
        let shared = self.own.transformer();
        let facts = self.mixer.inner().facts();
        facts.after(shared.map(|of| &of.attention))
    }

    /// Returns true if the block's weights are packed.
    pub(crate) fn is_packed(&self) -> bool {
        self.mixer.inner().is_packed() || self.feed_forward.inner().is_packed()
    }

    /// # Errors
    /// If the state belongs to another stack: the heads or the number of sequences differ, or only one of the two is
    /// packed. `shared` is the attention of a transformer that the block runs before its mixer.
    pub(super) fn check_state(
        &self,
        state: &BlockState,
        batch: usize,
        shared: Option<&Attention>,
    ) -> Result<()> {
        let of_mixer = match shared {
            None => &state.mixer,
            Some(attention) => {
                let [keys, of_mixer] = state.mixer.check_pair()?;
                keys.check(attention.packed.as_ref().map(|of| of.cached(batch)))?;
                of_mixer
            }
        };
        self.mixer.inner().check_state(of_mixer, batch)?;
        let cross = self.cross_attention.as_ref();
        match cross.and_then(|cross| cross.inner().packed.as_ref()) {
            Some(packed) => state.encoder.check(packed.cached(batch)),
            None => Ok(()),
        }
    }

    /// Fills an empty state from a cache's tensors.
    ///
    /// # Errors
    /// If they are another block's.
    pub(super) fn restore(
        &self,
        state: &mut BlockState,
        given: &Given,
        of: &Ledger,
        shared: Option<&Attention>,
    ) -> Result<()> {
        let batch = of.batch();
        let own = |of: &Attention| of.packed.as_ref().map(|of| of.own_rows(batch));
        let attention = self.mixer.inner().attention().ok().or(shared);
        let of_mixer = match self.mixer.inner().facts().shares_from {
            Some(_) => &Ledger::default(), // its keys are another layer's
            None => of,
        };
        let mixer = &mut state.mixer;
        mixer.restore(attention.and_then(own).as_ref(), given, of_mixer)?;
        let cross = self.cross_attention.as_ref();
        let cross = cross.and_then(|cross| own(cross.inner()));
        state.encoder.restore(cross, &given.at("encoder"), batch)?;
        self.check_state(state, batch, shared)
    }

    /// Creates the empty state for a cache. A packed block allocates from `pages`.
    pub(super) fn new_state(&self, pages: &LargePages) -> BlockState {
        let mixer = self.mixer.inner().new_state(pages);
        let keys = || match self.is_packed() {
            true => LayerState::panels(pages),
            false => LayerState::rows(),
        };
        BlockState {
            mixer: match self.own.transformer() {
                Some(_) => LayerState::pair(keys(), mixer),
                None => mixer,
            },
            encoder: EncoderState::new(self.is_packed()),
        }
    }

    /// Returns true if this rank holds one shard of the block, and other ranks hold the other shards.
    #[doc(hidden)]
    pub fn is_part(&self) -> bool {
        self.mixer.ranks.is_some()
    }

    /// Computes the output in evaluation mode, without a mask. Shapes are those in [`Self::forward_with`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }

    /// Computes the output with the context's mask, positions, encoder output and mode.
    ///
    /// # Shapes
    /// `[batch, seq, d_model]` to the same shape. `[seq, d_model]` is a single sequence, `[d_model]` a single
    /// position. A block with AltUp streams has `n_streams · d_model` columns, one of Zamba `2 · d_model`.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`, the rank is above 3, a mask does not fit, or a block with
    /// cross-attention gets no encoder output.
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        self.run(x, &Pass::new(context, x.dims())?)
    }

    /// Computes the output without a cache.
    #[doc(hidden)]
    pub fn run(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        pass.through(Origin::new("block", self.is_packed()), x, |x| {
            self.apply(x.clone(), pass, None, &mut StageRecorder::off())
        })
    }

    /// Computes the output like [`Self::forward_with`], with the same errors, and returns all intermediate results.
    pub fn stages(&self, x: &Tensor, context: &ForwardContext) -> Result<BlockStages> {
        let pass = Pass::new(context, x.dims())?;
        let mut recorder = StageRecorder::on();
        let x = pass.value(Origin::new("block", self.is_packed()), x)?;
        let output = self.apply(x, &pass, None, &mut recorder)?;
        self.recorded_stages(recorder, output)
    }

    /// Returns the intermediate results that `recorder` collected in the pass with this output.
    pub(super) fn recorded_stages(
        &self,
        mut recorder: StageRecorder,
        output: Value,
    ) -> Result<BlockStages> {
        let attention = recorder.sublayer()?;
        let cross = self.cross_attention.is_some().then(|| recorder.sublayer());
        let (cross, feed_forward) = (cross.transpose()?, recorder.sublayer()?);
        let gemma = self.own.gemma();
        let input = gemma.and_then(|of| of.layer_input.as_ref());
        let input = input.map(|_| recorder.sublayer()).transpose()?;
        let stages = BlockStages::new(attention, cross, feed_forward, input, output.tensor()?);
        match (gemma, self.own.zamba()) {
            (Some(gemma), _) => gemma.of_streams(stages),
            (None, Some(_)) => stages.of_streams(&AltUpConfig {
                n_streams: 2,
                active: 0,
            }),
            (None, None) => Ok(stages),
        }
    }

    /// Computes the output for positions after the cached ones.
    pub(super) fn apply(
        &self,
        x: Value,
        pass: &Pass,
        state: Option<&mut BlockStateMut>,
        recorder: &mut StageRecorder,
    ) -> Result<Value> {
        if let Some(zamba) = self.own.zamba() {
            let (keys, mut state) = zamba.split(state)?;
            return zamba.around(&x, pass, keys, |x, residual| {
                self.apply_branches(x, residual, pass, state.as_mut(), recorder)
            });
        }
        let branches = |x: Value, recorder: &mut StageRecorder| {
            self.apply_branches(x, None, pass, state, recorder)
        };
        let x = match self.own.gemma() {
            Some(gemma) => gemma.around(x, pass, recorder, branches)?,
            None => branches(x, recorder)?,
        };
        self.own.after_feed_forward(x, pass.context.train())
    }

    /// Computes attention and feed-forward, in sequence or in parallel. In sequence, the first may have another residual
    /// than its input.
    fn apply_branches(
        &self,
        x: Value,
        residual: Option<Value>,
        pass: &Pass,
        mut state: Option<&mut BlockStateMut>,
        recorder: &mut StageRecorder,
    ) -> Result<Value> {
        self.check_given(pass.context)?;
        let train = pass.context.train();
        if let Topology::Parallel(norm) = self.topology {
            return self.apply_parallel(&x, pass, state, recorder, norm);
        }
        let last = match residual {
            Some(residual) => Some(residual),
            None => self.last_rows(&x, pass)?,
        };
        let mix = |inner: &Mixer, x: &Value, residual: Option<&Value>| {
            let state = state.as_deref_mut().map(|state| &mut *state.mixer);
            inner.apply(x, pass, state, residual)
        };
        let input = self.own.reads_attention_input();
        let input = input.then(|| self.mixer.input(last.as_ref().unwrap_or(&x)));
        let input = input.transpose()?;
        let rows = last.as_ref();
        let mixed = self.mixer.unrecorded(&x, rows, train, recorder, mix)?;
        // The next step reuses this memory.
        drop((x, last));
        let input = input.as_ref();
        let mut x = self.own.after_attention(input, mixed, train, recorder)?;
        if let Some(cross) = &self.cross_attention {
            let attend = |inner: &Attention, x: &Value, residual: Option<&Value>| {
                let state = state.map(|state| &mut *state.encoder);
                inner.apply_cross(x, pass.requested(), state, residual)
            };
            x = cross.apply(&x, None, train, recorder, attend)?;
        }
        let feed = |inner: &BlockFeedForward, x: &Value, residual: Option<&Value>| {
            inner.apply(x, residual, train)
        };
        self.feed_forward.apply(&x, None, train, recorder, feed)
    }

    /// Returns the rows whose output is requested, or `None` if these are all rows.
    fn last_rows(&self, x: &Value, pass: &Pass) -> Result<Option<Value>> {
        match pass.requested().seq == pass.seq {
            true => Ok(None),
            false => pass.requested_rows(x.clone()).map(Some),
        }
    }

    /// # Errors
    /// If the block is sharded and its additive mask or encoder output tracks gradients. Each rank would find only a
    /// part of such a gradient.
    fn check_given(&self, context: &ForwardContext) -> Result<()> {
        if !self.is_part() {
            return Ok(());
        }
        let heads = self.mixer.inner().facts().heads;
        let n_heads = heads.map_or(0, |heads| heads.n_heads);
        let mask = context.mask().additive();
        // A mask with one plane for each head on this rank belongs to this rank alone.
        let mask = mask.filter(|mask| mask.rank() != 4 || mask.dims()[1] != n_heads);
        let encoder = context
            .encoder_output()
            .map(|encoder| &encoder.hidden_states);
        for (name, given) in [("encoder_hidden_states", encoder), ("additive mask", mask)] {
            if given.is_some_and(Tensor::track_op) {
                bail!(
                    "block: {name} tracks gradients, which a tensor-parallel block does not compute; detach() it"
                );
            }
        }
        Ok(())
    }
}

parts!(TransformerBlock:
    Self { mixer: attention, cross_attention, feed_forward, own, .. }
    => [own] [attention, cross_attention, feed_forward]);

impl ModuleT for TransformerBlock {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation().with_train(train))
    }
}
