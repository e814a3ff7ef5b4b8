//! The transformer block: attention and feed-forward, each a residual sublayer.

use std::sync::Arc;

use candle_core::{ModuleT, Result, Tensor, bail};
use candle_nn::VarBuilder;

use crate::config::{BlockConfig, NormPlacement, ParallelNorm, Topology, getters};
use crate::layers::{
    Attention, BlockFeedForward, BranchScale, Dropout, DropoutSource, ForwardContext, Linear,
    Sublayer, SublayerNorm, SublayerStages,
};
use crate::layers::{kv_cache::LayerCache, pass::Pass, sublayer::Watch};
use crate::ops::{Ranks, Value};

/// The intermediate results of a block.
#[derive(Clone, Debug)]
pub struct BlockStages {
    /// The self-attention sublayer.
    pub attention: SublayerStages,
    /// The cross-attention sublayer, where there is one.
    pub cross_attention: Option<SublayerStages>,
    /// The feed-forward sublayer; its `output` is that of the block.
    pub feed_forward: SublayerStages,
}

impl BlockStages {
    /// The block's output.
    pub fn output(&self) -> &Tensor {
        &self.feed_forward.output
    }
}

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
/// `feed_forward.{up,down[,gate]}`, `feed_forward_norm`, and `cross_attention…` as `attention…`.
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
        Ok(block.with_parallel_dropout(dropout))
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
            topology,
            parallel_dropout: Dropout::none(),
        };
        block.check_shapes()?;
        Ok(block)
    }

    /// # Errors
    /// As for [`Self::from_parts`], and where a part's own parts do not fit each other.
    pub(crate) fn check_shapes(&self) -> Result<()> {
        let d_model = self.d_model();
        for attention in [Some(&self.attention), self.cross_attention.as_ref()] {
            let Some(attention) = attention else { continue };
            attention.inner().check_shapes()?;
            attention.check_widths([attention.inner().config().d_model; 2])?;
        }
        self.feed_forward.inner().check_shapes()?;
        let [width, d_out] = self.feed_forward.inner().widths();
        self.feed_forward.check_widths([width, d_out])?;
        let of_cross = |cross: &Sublayer<Attention>| cross.inner().config().d_model;
        let mut others = self.cross_attention.iter().map(of_cross).chain([width]);
        if let Some(other) = others.find(|&width| width != d_model) {
            bail!(
                "block: attention of rows of {d_model}, beside a sublayer of rows of {other}; expected one width"
            );
        }
        self.check_topology()
    }

    /// The width of the input and the output.
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
        /// Whether the sublayers run in sequence or in parallel.
        topology(&self) -> Topology => self.topology;
    }

    /// Makes the block, which is a part, one of those of the ranks.
    pub(crate) fn divide(&mut self, ranks: &Arc<Ranks>) {
        let attentions = [Some(&mut self.attention), self.cross_attention.as_mut()];
        for attention in attentions.into_iter().flatten() {
            attention.divide(ranks);
        }
        self.feed_forward.divide(ranks);
    }

    /// Whether it is a part of a block, whose other parts other ranks have.
    pub(crate) fn is_part(&self) -> bool {
        self.attention.ranks().is_some()
    }

    /// Makes the block draw all its dropout masks from `source`, in the order of the forward pass.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        let attentions = [Some(&mut self.attention), self.cross_attention.as_mut()];
        for attention in attentions.into_iter().flatten() {
            attention.set_dropout_source(source);
            attention.inner_mut().set_dropout_source(source);
        }
        self.feed_forward.set_dropout_source(source);
        self.feed_forward.inner_mut().set_dropout_source(source);
        self.parallel_dropout.set_source(source.clone());
    }

    /// The linear layers, mutable, each named by its role (`blocks.3.attention.query`) under the given one (`blocks.3`).
    pub fn linears_mut(&mut self, role: &str) -> Vec<(String, &mut Linear)> {
        let attention = self.attention.inner_mut();
        let mut linears = attention.linears_mut(&format!("{role}.attention"));
        if let Some(cross) = &mut self.cross_attention {
            let role = format!("{role}.cross_attention");
            linears.extend(cross.inner_mut().linears_mut(&role));
        }
        let role = format!("{role}.feed_forward");
        linears.extend(match self.feed_forward.inner_mut() {
            BlockFeedForward::Dense(feed_forward) => feed_forward.linears_mut(&role),
            BlockFeedForward::Experts(experts) => experts.linears_mut(&role),
        });
        linears
    }

    /// Every dropout of the layer.
    pub(crate) fn dropouts(&self) -> Vec<&Dropout> {
        let mut dropouts = match self.feed_forward.inner() {
            BlockFeedForward::Dense(feed_forward) => feed_forward.dropouts(),
            BlockFeedForward::Experts(experts) => experts.dropouts(),
        };
        dropouts.extend(self.feed_forward.dropouts());
        let attentions = [Some(&self.attention), self.cross_attention.as_ref()];
        for attention in attentions.into_iter().flatten() {
            dropouts.extend(attention.dropouts());
            dropouts.extend(attention.inner().dropouts());
        }
        dropouts.push(&self.parallel_dropout);
        dropouts
    }

    /// The output in evaluation mode with nothing masked; shapes as in [`Self::forward_with`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }

    /// The output with the context's mask, positions, memory and mode.
    ///
    /// # Shapes
    /// `[batch, seq, d_model]` to the same shape. `[seq, d_model]` is a single sequence, `[d_model]` a single position.
    ///
    /// # Errors
    /// If the last dimension is not `d_model`, the rank is above 3, a mask does not fit, a block with cross-attention gets
    /// no memory, or a parallel block has cross-attention or a norm behind the residual.
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        let pass = Pass::new(context, x.dims())?;
        pass.through(x, |x| self.apply(x, &pass, None, &mut Watch::off()))
    }

    /// Like [`Self::forward_with`], with the same errors, but returns all intermediate results.
    pub fn stages(&self, x: &Tensor, context: &ForwardContext) -> Result<BlockStages> {
        let pass = Pass::new(context, x.dims())?;
        let mut watch = Watch::on();
        self.apply(&pass.value(x)?, &pass, None, &mut watch)?;
        self.watched(watch)
    }

    /// What was watched in one pass.
    pub(super) fn watched(&self, mut watch: Watch) -> Result<BlockStages> {
        Ok(BlockStages {
            attention: watch.sublayer()?,
            cross_attention: match &self.cross_attention {
                Some(_) => Some(watch.sublayer()?),
                None => None,
            },
            feed_forward: watch.sublayer()?,
        })
    }

    /// The output in a pass, for positions after the cached ones.
    pub(super) fn apply(
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
        let mut x = self.attention.apply(x, train, watch, attend)?;
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

    /// # Errors
    /// If the block is parallel and has a part that only a sequential block can have: cross-attention, or a norm of the sum.
    fn check_topology(&self) -> Result<()> {
        if self.topology == Topology::Sequential {
            return Ok(());
        }
        if self.cross_attention.is_some() {
            bail!("block: cross-attention needs Topology::Sequential, but the block is parallel");
        }
        let norms = [self.attention.norm(), self.feed_forward.norm()];
        if norms.iter().any(|norm| norm.of_sum().is_some()) {
            bail!(
                "block: a norm behind the residual (SublayerNorm::Post) needs Topology::Sequential, but the block is parallel"
            );
        }
        Ok(())
    }

    /// `x + dropout(attention(norm(x)) + feed_forward(norm(x)))` (Wang and Komatsuzaki 2021, GPT-J).
    fn apply_parallel(
        &self,
        x: &Value,
        pass: &Pass,
        cache: Option<&mut LayerCache>,
        watch: &mut Watch,
        norm: ParallelNorm,
    ) -> Result<Value> {
        let train = pass.context.train();
        let attention_input = watch.see(self.attention.input(x)?)?;
        let residual = self.attention.residual(x, &attention_input);
        // With dropout of the two branches' sum, the residual comes last.
        let dropped = self.parallel_dropout.is_on(train);
        let added_to = (!dropped).then_some(residual);
        let attend = |inner: &Attention, x: &Value, residual: Option<&Value>| {
            inner.apply(x, pass, cache, residual)
        };
        let attended = self
            .attention
            .added(&attention_input, added_to, train, watch, attend)?;
        let attended = match dropped && watch.is_on() {
            false => watch.see(attended)?,
            true => {
                let attended = pass.value(&attended.tensor()?)?;
                watch.see(residual.add(&attended)?)?;
                attended
            }
        };
        let input = match norm {
            ParallelNorm::Shared => attention_input.clone(),
            ParallelNorm::Separate => self.feed_forward.input(x)?,
        };
        let input = watch.see(input)?;
        let feed = |inner: &BlockFeedForward, x: &Value, residual: Option<&Value>| {
            inner.apply(x, residual, train)
        };
        let sum = self
            .feed_forward
            .added(&input, Some(&attended), train, watch, feed)?;
        watch.see(match dropped {
            true => residual.add(&self.parallel_dropout.apply(&sum, train)?)?,
            false => sum,
        })
    }
}

impl ModuleT for TransformerBlock {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation().with_train(train))
    }
}
