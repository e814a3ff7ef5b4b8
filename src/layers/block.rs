//! The transformer block: attention and feed-forward, each a residual sublayer.

use candle_core::{ModuleT, Result, Tensor, bail};
use candle_nn::{Init, VarBuilder};

use crate::config::{BlockConfig, NormPlacement, ParallelNorm, Topology, getters};
use crate::layers::{
    AltUp, Attention, BlockFeedForward, BranchScale, Dropout, DropoutSource, ForwardContext,
    GatedInput, Laurel, Sublayer, SublayerNorm,
};
use crate::layers::{
    altup::side_by_side, kv_cache::LayerCache, pass::Pass, sublayer::Watch, visit::parts,
};
use crate::ops::Value;

mod parallel;
mod stages;

pub use stages::BlockStages;

/// An inner layer, which drops with probability `p`, with what the configuration puts around it.
fn around<L>(
    (role, inner): (&str, L),
    placement: NormPlacement,
    p: f64,
    config: &BlockConfig,
    vb: &VarBuilder,
) -> Result<Sublayer<L>> {
    let (residual, source) = (&config.residual, DropoutSource::default);
    let norm = SublayerNorm::new(placement, &config.norm, role, vb)?;
    let scale = match (residual.layer_scale, residual.multiplier) {
        (true, _) => BranchScale::learned(config.d_model(), role, vb)?,
        (false, 1.0) => BranchScale::One,
        (false, factor) => BranchScale::Constant(factor),
    };
    Ok(Sublayer::from_parts(inner, norm)?
        .with_dropout(Dropout::new(p, source())?)
        .with_scale(scale)
        .with_drop_path(Dropout::of_samples(residual.drop_path, source())?)
        .with_source(residual.source))
}

/// One transformer block: self-attention, optional cross-attention and a feed-forward, each a residual
/// [`Sublayer`], either in sequence or in parallel.
///
/// Names in a `VarBuilder`: `attention.{query,key,value,output}`, `attention_norm`,
/// `feed_forward.{up,down[,gate]}`, `feed_forward_norm`, and `cross_attention…` as `attention…`; `layer_input.{gate,output}`,
/// `layer_input_output_norm` and `output_scale.weight` `[1]`; `laurel.…` as in [`Laurel`] and `altup.…` as in [`AltUp`].
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
    attention: Sublayer<Attention>,
    cross_attention: Option<Sublayer<Attention>>,
    feed_forward: Sublayer<BlockFeedForward>,
    layer_input: Option<Sublayer<GatedInput>>,
    /// `[1]`
    output_scale: Option<Tensor>,
    laurel: Option<Laurel>,
    altup: Option<AltUp>,
    topology: Topology,
    parallel_dropout: Dropout,
}

impl TransformerBlock {
    /// Gets every part from `vb`, under the names above.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new(config: &BlockConfig, vb: VarBuilder) -> Result<Self> {
        config.validate()?;
        let residual = &config.residual;
        let attend = |role, attention| {
            let inner = (role, Attention::new(attention, vb.pp(role))?);
            let (placement, p) = (config.attention_placement, residual.attention_dropout);
            around(inner, placement, p, config, &vb)
        };
        let placement = match config.topology {
            Topology::Parallel(ParallelNorm::Shared) => NormPlacement::None,
            _ => config.feed_forward_placement,
        };
        let (role, p) = ("feed_forward", residual.feed_forward_dropout);
        let inner = BlockFeedForward::new(&config.feed_forward, vb.pp(role))?;
        let feed_forward = around((role, inner), placement, p, config, &vb)?;
        let attention = attend("attention", &config.attention)?;
        let cross = config.cross_attention.as_ref();
        let cross = cross.map(|cross| attend("cross_attention", cross));
        let block = Self::from_parts(attention, cross.transpose()?, feed_forward, config.topology)?;
        let dropout = Dropout::new(residual.parallel_dropout, DropoutSource::default())?;
        let input = config.layer_input.as_ref().map(|input| {
            let inner = GatedInput::new(input, config.d_model(), vb.pp("layer_input"))?;
            let placement = NormPlacement::Output;
            around(("layer_input", inner), placement, 0.0, config, &vb)
        });
        let output_scale = config.output_scale.then(|| {
            let vb = vb.pp("output_scale");
            vb.get_with_hints(1, "weight", Init::Const(1.0))
        });
        let laurel = config
            .laurel_rank
            .map(|rank| Laurel::new(rank, &config.norm, &vb.pp("laurel")));
        let altup = config.altup.as_ref();
        let altup = altup.map(|altup| AltUp::new(altup, &config.norm, &vb.pp("altup")));
        block
            .with_parallel_dropout(dropout)
            .with_layer_input(input.transpose()?)?
            .with_output_scale(output_scale.transpose()?)?
            .with_laurel(laurel.transpose()?)?
            .with_altup(altup.transpose()?)
    }

    /// Builds the block from its sublayers. In a parallel block with a shared norm, a norm of the feed-forward is not used.
    ///
    /// # Errors
    /// If the sublayers are of different widths, or a parallel block has cross-attention or a norm of the sum.
    pub fn from_parts(
        attention: Sublayer<Attention>,
        cross_attention: Option<Sublayer<Attention>>,
        feed_forward: Sublayer<BlockFeedForward>,
        topology: Topology,
    ) -> Result<Self> {
        let block = Self {
            attention,
            cross_attention,
            feed_forward,
            layer_input: None,
            output_scale: None,
            laurel: None,
            altup: None,
            topology,
            parallel_dropout: Dropout::none(),
        };
        block.check_shapes()?;
        Ok(block)
    }

    /// Adds the sublayer of an input that the block has for itself, behind the feed-forward.
    ///
    /// # Errors
    /// If it is of another width.
    pub fn with_layer_input(mut self, input: Option<Sublayer<GatedInput>>) -> Result<Self> {
        self.layer_input = input;
        self.check_shapes()?;
        Ok(self)
    }

    /// Multiplies the output by a number `[1]`, which gets no gradient.
    ///
    /// # Errors
    /// If it has another shape.
    pub fn with_output_scale(mut self, scale: Option<Tensor>) -> Result<Self> {
        if let Some(found) = scale.as_ref().map(Tensor::dims).filter(|dims| *dims != [1]) {
            bail!("block: the output's scale has shape {found:?}, expected [1]");
        }
        self.output_scale = scale;
        Ok(self)
    }

    /// Adds what the normalised input adds to the attention sublayer's output.
    ///
    /// # Errors
    /// If it is of another width, or the block is parallel.
    pub fn with_laurel(mut self, laurel: Option<Laurel>) -> Result<Self> {
        self.laurel = laurel;
        self.check_shapes()?;
        Ok(self)
    }

    /// Makes the block compute one of several streams, which lie side by side in its input and its output.
    ///
    /// # Errors
    /// If they are of another width, or the block has no input for itself, or a scale of its output.
    pub fn with_altup(mut self, altup: Option<AltUp>) -> Result<Self> {
        self.altup = altup;
        self.check_shapes()?;
        Ok(self)
    }

    /// # Errors
    /// As for [`Self::from_parts`], and where a part's own parts do not fit each other.
    pub(crate) fn check_shapes(&self) -> Result<()> {
        let d_model = self.d_model();
        for attention in [Some(&self.attention), self.cross_attention.as_ref()] {
            let Some(attention) = attention else { continue };
            attention.check_widths([attention.inner().config().d_model; 2])?;
        }
        let [width, d_out] = self.feed_forward.inner().widths();
        self.feed_forward.check_widths([width, d_out])?;
        let of_cross = |cross: &Sublayer<Attention>| cross.inner().config().d_model;
        let others = self.cross_attention.iter().map(of_cross).chain([width]);
        let of_input = |input: &Sublayer<GatedInput>| input.inner().widths()[0];
        let others = others.chain(self.layer_input.iter().map(of_input));
        if let Some(input) = &self.layer_input {
            input.inner().check_shapes()?;
            input.check_widths(input.inner().widths())?;
        }
        if let Some(laurel) = &self.laurel {
            laurel.check_shapes()?;
            if self.topology != Topology::Sequential {
                bail!("block: laurel in a parallel block, expected Topology::Sequential");
            }
        }
        if let Some(altup) = &self.altup {
            altup.check_shapes()?;
            if self.layer_input.is_none() || self.output_scale.is_some() {
                bail!("block: altup needs an input of the block's own, and no scale of its output");
            }
        }
        let of_laurel = self.laurel.iter().map(|laurel| laurel.down().shape().1);
        let of_altup = self.altup.iter().map(AltUp::d_model);
        let mut others = others.chain(of_laurel).chain(of_altup);
        if let Some(other) = others.find(|&width| width != d_model) {
            bail!(
                "block: attention of rows of {d_model}, beside a sublayer of rows of {other}; expected one width"
            );
        }
        self.check_topology()
    }

    /// The width of the input and the output, or of one of their streams.
    pub(crate) fn d_model(&self) -> usize {
        self.attention.inner().config().d_model
    }

    /// Applies dropout to the sum of a parallel block's two branches.
    pub fn with_parallel_dropout(mut self, dropout: Dropout) -> Self {
        self.parallel_dropout = dropout;
        self
    }

    getters! {
        /// The self-attention sublayer.
        attention(&self) -> &Sublayer<Attention> => &self.attention;
        /// The cross-attention sublayer.
        cross_attention(&self) -> Option<&Sublayer<Attention>> => self.cross_attention.as_ref();
        /// The feed-forward sublayer.
        feed_forward(&self) -> &Sublayer<BlockFeedForward> => &self.feed_forward;
        /// The sublayer of the input that the block has for itself.
        layer_input(&self) -> Option<&Sublayer<GatedInput>> => self.layer_input.as_ref();
        /// The number `[1]` that the output is multiplied by.
        output_scale(&self) -> Option<&Tensor> => self.output_scale.as_ref();
        /// What the normalised input adds to the attention sublayer's output.
        laurel(&self) -> Option<&Laurel> => self.laurel.as_ref();
        /// The streams of which the block computes one.
        altup(&self) -> Option<&AltUp> => self.altup.as_ref();
        /// Whether the sublayers run in sequence or in parallel.
        topology(&self) -> Topology => self.topology;
    }

    /// Whether it is a part of a block, whose other parts other ranks have.
    pub(crate) fn is_part(&self) -> bool {
        self.attention.ranks().is_some()
    }

    /// The output in evaluation mode with nothing masked; shapes as in [`Self::forward_with`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }

    /// The output with the context's mask, positions, memory and mode.
    ///
    /// # Shapes
    /// `[batch, seq, d_model]` to the same shape. `[seq, d_model]` is a single sequence, `[d_model]` a single position. Of a block
    /// with streams, `n_streams · d_model` columns.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`, the rank is above 3, a mask does not fit, a block with cross-attention gets
    /// no memory, or a parallel block has cross-attention or a norm behind the residual.
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        self.run(x, &Pass::new(context, x.dims())?)
    }

    /// The output in a pass, without a cache.
    pub(crate) fn run(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        pass.through(x, |x| self.apply(x, pass, None, &mut Watch::off()))
    }

    /// Like [`Self::forward_with`], with the same errors, but returns all intermediate results.
    pub fn stages(&self, x: &Tensor, context: &ForwardContext) -> Result<BlockStages> {
        let pass = Pass::new(context, x.dims())?;
        let mut watch = Watch::on();
        let output = self.apply(&pass.value(x)?, &pass, None, &mut watch)?;
        self.watched(watch, output)
    }

    /// What was watched in one pass, which gave this output.
    pub(super) fn watched(&self, mut watch: Watch, output: Value) -> Result<BlockStages> {
        let attention = watch.sublayer()?;
        let cross = self.cross_attention.is_some().then(|| watch.sublayer());
        let (cross, feed_forward) = (cross.transpose()?, watch.sublayer()?);
        let input = self.layer_input.is_some().then(|| watch.sublayer());
        let (input, output) = (input.transpose()?, output.tensor()?);
        let stages = BlockStages::new(attention, cross, feed_forward, input, output);
        match &self.altup {
            Some(altup) => stages.of_streams(altup.config()),
            None => Ok(stages),
        }
    }

    /// The output in a pass, for positions after the cached ones.
    pub(super) fn apply(
        &self,
        x: &Value,
        pass: &Pass,
        cache: Option<&mut LayerCache>,
        watch: &mut Watch,
    ) -> Result<Value> {
        if let Some(altup) = &self.altup {
            return self.apply_to_streams(altup, x, pass, cache, watch);
        }
        let mut x = self.apply_branches(x, pass, cache, watch)?;
        if let Some(input) = &self.layer_input {
            let (of_layer, train) = (pass.layer_input()?, pass.context.train());
            let gated = |inner: &GatedInput, x: &Value, residual: Option<&Value>| {
                inner.apply(x, &of_layer, residual, train)
            };
            x = input.apply(&x, train, watch, gated)?;
        }
        match &self.output_scale {
            Some(scale) => x.scale_by(scale),
            None => Ok(x),
        }
    }

    /// The streams behind the block, side by side: the active one computed, all corrected, and the block's own input added to
    /// all but the first.
    fn apply_to_streams(
        &self,
        altup: &AltUp,
        x: &Value,
        pass: &Pass,
        cache: Option<&mut LayerCache>,
        watch: &mut Watch,
    ) -> Result<Value> {
        let (train, active) = (pass.context.train(), altup.config().active);
        let predicted = altup.predicted(x, train)?;
        let y = self.apply_branches(&predicted[active], pass, cache, watch)?;
        let mut streams = altup.corrected(&predicted, &y, train)?;
        if let Some(input) = &self.layer_input {
            let of_layer = pass.layer_input()?;
            let gated = |inner: &GatedInput, x: &Value, residual: Option<&Value>| {
                inner.apply(x, &of_layer, residual, train)
            };
            let scaled = streams[active].multiply_rows(altup.input_scale())?;
            let added = input.branch(&scaled, train, watch, gated)?;
            for stream in &mut streams[1..] {
                *stream = stream.add(&added)?;
            }
        }
        side_by_side(streams.iter())
    }

    /// Attention and feed-forward, in sequence or in parallel.
    fn apply_branches(
        &self,
        x: &Value,
        pass: &Pass,
        mut cache: Option<&mut LayerCache>,
        watch: &mut Watch,
    ) -> Result<Value> {
        self.check_given(pass.context)?;
        let train = pass.context.train();
        if let Topology::Parallel(norm) = self.topology {
            return self.apply_parallel(x, pass, cache, watch, norm);
        }
        let attend = |inner: &Attention, x: &Value, residual: Option<&Value>| {
            inner.apply(x, pass, cache.as_deref_mut(), residual)
        };
        let normal = self.laurel.as_ref().map(|_| self.attention.input(x));
        let mut x = self.attention.apply(x, train, watch, attend)?;
        if let (Some(laurel), Some(normal)) = (&self.laurel, normal) {
            x = laurel.apply(&normal?, &x, train)?;
        }
        if let Some(cross) = &self.cross_attention {
            let attend = |inner: &Attention, x: &Value, residual: Option<&Value>| {
                inner.apply_cross(x, pass, cache, residual)
            };
            x = cross.apply(&x, train, watch, attend)?;
        }
        let feed = |inner: &BlockFeedForward, x: &Value, residual: Option<&Value>| {
            inner.apply(x, residual, train)
        };
        self.feed_forward.apply(&x, train, watch, feed)
    }

    /// # Errors
    /// If the block is a rank's part, and what its attention is given beside its input asks for a gradient, of which each rank
    /// would find a part.
    fn check_given(&self, context: &ForwardContext) -> Result<()> {
        if !self.is_part() {
            return Ok(());
        }
        let n_heads = self.attention.inner().config().n_heads;
        let mask = context.mask().additive();
        // One for each of this rank's heads is of no other.
        let mask = mask.filter(|mask| mask.rank() != 4 || mask.dims()[1] != n_heads);
        let memory = context.memory().map(|memory| &memory.hidden_states);
        for (name, given) in [("encoder_hidden_states", memory), ("additive mask", mask)] {
            if given.is_some_and(Tensor::track_op) {
                bail!(
                    "block: {name} tracks gradients, which tensor parallel blocks have not; detach() it"
                );
            }
        }
        Ok(())
    }
}

parts!(TransformerBlock:
    Self { attention, cross_attention, feed_forward, layer_input, laurel, altup, parallel_dropout, .. }
    => [attention, cross_attention, feed_forward, layer_input, laurel, altup] [parallel_dropout]);

impl ModuleT for TransformerBlock {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation().with_train(train))
    }
}
