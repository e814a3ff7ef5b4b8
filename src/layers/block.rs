//! The transformer block: attention and feed-forward, each a residual sublayer.

use candle_core::{ModuleT, Result, Tensor, bail};
use candle_nn::VarBuilder;

use crate::{
    config::{BlockConfig, NormPlacement, ParallelNorm, Topology},
    layers::{
        Attention, BlockFeedForward, BranchScale, Dropout, DropoutSource, ForwardContext, Linear,
        Sublayer, SublayerNorm, SublayerStages, joint::joint, kv_cache::LayerCache, pass::Pass,
    },
};

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
        let scale = |role: &str| match (residual.layer_scale, residual.multiplier) {
            (true, _) => BranchScale::learned(config.d_model(), role, &vb),
            (false, 1.0) => Ok(BranchScale::One),
            (false, factor) => Ok(BranchScale::Constant(factor)),
        };
        let attend = |role: &str, attention| -> Result<Sublayer<Attention>> {
            let norm = SublayerNorm::new(config.attention_placement, &config.norm, role, &vb)?;
            let dropout = Dropout::new(residual.attention_dropout, DropoutSource::default())?;
            let drop_path = Dropout::of_samples(residual.drop_path, DropoutSource::default())?;
            Ok(
                Sublayer::from_parts(Attention::new(attention, vb.pp(role))?, norm)
                    .with_dropout(dropout)
                    .with_scale(scale(role)?)
                    .with_drop_path(drop_path)
                    .with_source(residual.source),
            )
        };
        let role = "feed_forward";
        let placement = match config.topology {
            Topology::Parallel(ParallelNorm::Shared) => NormPlacement::None,
            _ => config.feed_forward_placement,
        };
        let norm = SublayerNorm::new(placement, &config.norm, role, &vb)?;
        let dropout = Dropout::new(residual.feed_forward_dropout, DropoutSource::default())?;
        let drop_path = Dropout::of_samples(residual.drop_path, DropoutSource::default())?;
        let inner = BlockFeedForward::new(&config.feed_forward, vb.pp(role))?;
        Ok(Self {
            attention: attend("attention", &config.attention)?,
            cross_attention: match &config.cross_attention {
                Some(attention) => Some(attend("cross_attention", attention)?),
                None => None,
            },
            feed_forward: Sublayer::from_parts(inner, norm)
                .with_dropout(dropout)
                .with_scale(scale(role)?)
                .with_drop_path(drop_path)
                .with_source(residual.source),
            topology: config.topology,
            parallel_dropout: Dropout::new(residual.parallel_dropout, DropoutSource::default())?,
        })
    }

    /// Builds a sequential block from its two sublayers.
    pub fn from_parts(
        attention: Sublayer<Attention>,
        feed_forward: Sublayer<BlockFeedForward>,
    ) -> Self {
        Self {
            attention,
            cross_attention: None,
            feed_forward,
            topology: Topology::Sequential,
            parallel_dropout: Dropout::none(),
        }
    }

    /// Adds cross-attention between the two sublayers.
    pub fn with_cross_attention(mut self, cross_attention: Sublayer<Attention>) -> Self {
        self.cross_attention = Some(cross_attention);
        self
    }

    /// Sets whether the sublayers run in sequence or in parallel. With a shared norm, the norm of the feed-forward is
    /// not used.
    pub fn with_topology(mut self, topology: Topology) -> Self {
        self.topology = topology;
        self
    }

    /// Applies dropout to the sum of a parallel block's two branches.
    pub fn with_parallel_dropout(mut self, dropout: Dropout) -> Self {
        self.parallel_dropout = dropout;
        self
    }

    /// The self-attention sublayer.
    pub fn attention(&self) -> &Sublayer<Attention> {
        &self.attention
    }

    /// The cross-attention sublayer.
    pub fn cross_attention(&self) -> Option<&Sublayer<Attention>> {
        self.cross_attention.as_ref()
    }

    /// The feed-forward sublayer.
    pub fn feed_forward(&self) -> &Sublayer<BlockFeedForward> {
        &self.feed_forward
    }

    /// Whether the sublayers run in sequence or in parallel.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// Makes the block draw all its dropout masks from `source`, in the order of the forward pass.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        for attention in [Some(&mut self.attention), self.cross_attention.as_mut()]
            .into_iter()
            .flatten()
        {
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
        self.output(x, &Pass::new(context), None)
    }

    /// Like [`Self::forward_with`], with the same errors, but returns all intermediate results.
    pub fn stages(&self, x: &Tensor, context: &ForwardContext) -> Result<BlockStages> {
        self.run(x, &Pass::new(context), None)
    }

    /// The output in a pass, for positions after the cached ones; one node of the graph where [`joint`] allows it.
    pub(crate) fn output(
        &self,
        x: &Tensor,
        pass: &Pass,
        cache: Option<&mut LayerCache>,
    ) -> Result<Tensor> {
        if cache.is_none()
            && let Some(output) = joint([self].into_iter(), None, x, pass)?
        {
            return Ok(output);
        }
        Ok(self.run(x, pass, cache)?.feed_forward.output)
    }

    /// The stages in a pass, for positions after the cached ones.
    pub(crate) fn run(
        &self,
        x: &Tensor,
        pass: &Pass,
        mut cache: Option<&mut LayerCache>,
    ) -> Result<BlockStages> {
        let train = pass.context.train();
        if let Topology::Parallel(norm) = self.topology {
            return self.run_parallel(x, pass, cache, norm);
        }
        let attention = self.attention.stages(x, train, |inner, x| {
            inner.attend(x, pass, cache.as_deref_mut())
        })?;
        let cross_attention = match &self.cross_attention {
            None => None,
            Some(cross) => Some(cross.stages(&attention.output, train, |inner, x| {
                inner.attend_memory(x, pass.context, cache)
            })?),
        };
        let x = cross_attention
            .as_ref()
            .map_or(&attention.output, |cross| &cross.output);
        let feed_forward = self
            .feed_forward
            .stages(x, train, |inner, x| inner.forward_t(x, train))?;
        Ok(BlockStages {
            attention,
            cross_attention,
            feed_forward,
        })
    }

    /// # Errors
    /// If the block is parallel and has a part that only a sequential block can have: cross-attention, or a norm of the sum.
    pub(crate) fn check_topology(&self) -> Result<()> {
        if self.topology == Topology::Sequential {
            return Ok(());
        }
        if self.cross_attention.is_some() {
            bail!("block: cross-attention needs Topology::Sequential, but the block is parallel");
        }
        let norms = [self.attention.norm(), self.feed_forward.norm()];
        if norms
            .iter()
            .any(|norm| matches!(norm, SublayerNorm::Post(_)))
        {
            bail!(
                "block: a norm behind the residual (SublayerNorm::Post) needs Topology::Sequential, but the block is parallel"
            );
        }
        Ok(())
    }

    /// `x + dropout(attention(norm(x)) + feed_forward(norm(x)))` (Wang and Komatsuzaki 2021, GPT-J).
    fn run_parallel(
        &self,
        x: &Tensor,
        pass: &Pass,
        cache: Option<&mut LayerCache>,
        norm: ParallelNorm,
    ) -> Result<BlockStages> {
        self.check_topology()?;
        let train = pass.context.train();
        let attention_input = self.attention.input(x)?;
        let attended = self
            .attention
            .inner()
            .attend(&attention_input, pass, cache)?;
        let attention_branch = self.attention.branch(&attended, train)?;
        let residual = self.attention.residual(x, &attention_input);
        let attention_output = (residual + &attention_branch)?;
        let input = match norm {
            ParallelNorm::Shared => attention_input.clone(),
            ParallelNorm::Separate => self.feed_forward.input(x)?,
        };
        let inner_output = self.feed_forward.inner().forward_t(&input, train)?;
        let branch = self.feed_forward.branch(&inner_output, train)?;
        let output = if train && self.parallel_dropout.p() > 0.0 {
            let sum = (attention_branch + branch)?;
            (residual + self.parallel_dropout.forward_t(&sum, train)?)?
        } else {
            (&attention_output + branch)?
        };
        Ok(BlockStages {
            attention: SublayerStages {
                input: attention_input,
                inner_output: attended,
                output: attention_output,
            },
            cross_attention: None,
            feed_forward: SublayerStages {
                input,
                inner_output,
                output,
            },
        })
    }
}

impl ModuleT for TransformerBlock {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation().with_train(train))
    }
}
