//! The transformer block: an attention sublayer and a feed-forward sublayer.

use candle_core::{ModuleT, Result, Tensor};
use candle_nn::VarBuilder;

use crate::{
    config::BlockConfig,
    layers::{
        Attention, Dropout, DropoutSource, FeedForward, ForwardContext, Sublayer, SublayerNorm,
        SublayerStages,
    },
};

/// What a block computed on its way.
#[derive(Clone, Debug)]
pub struct BlockStages {
    /// The attention sublayer.
    pub attention: SublayerStages,
    /// The feed-forward sublayer; its `output` is the block's.
    pub feed_forward: SublayerStages,
}

impl BlockStages {
    /// The block's output.
    pub fn output(&self) -> &Tensor {
        &self.feed_forward.output
    }
}

/// One block of a transformer: `feed_forward(attention(x))`, each a residual
/// [`Sublayer`] with its norm before (GPT-2, Llama) or behind (BERT).
///
/// Names in a `VarBuilder`: `attention.{query,key,value,output}`, `attention_norm`,
/// `feed_forward.{up,down[,gate]}`, `feed_forward_norm`.
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
    feed_forward: Sublayer<FeedForward>,
}

impl TransformerBlock {
    /// Takes every part from `vb` under the names above.
    pub fn new(config: &BlockConfig, vb: VarBuilder) -> Result<Self> {
        config.validate()?;
        let norm = |role| SublayerNorm::new(config.placement, &config.norm, role, &vb);
        let dropout = Dropout::new(config.residual_dropout, DropoutSource::default())?;
        let attention = Attention::new(&config.attention, vb.pp("attention"))?;
        let feed_forward = FeedForward::new(&config.feed_forward, vb.pp("feed_forward"))?;
        Ok(Self::from_parts(
            Sublayer::from_parts(attention, norm("attention")?).with_dropout(dropout.clone()),
            Sublayer::from_parts(feed_forward, norm("feed_forward")?).with_dropout(dropout),
        ))
    }

    /// Of the two sublayers.
    pub fn from_parts(attention: Sublayer<Attention>, feed_forward: Sublayer<FeedForward>) -> Self {
        Self {
            attention,
            feed_forward,
        }
    }

    /// The attention sublayer.
    pub fn attention(&self) -> &Sublayer<Attention> {
        &self.attention
    }

    /// The feed-forward sublayer.
    pub fn feed_forward(&self) -> &Sublayer<FeedForward> {
        &self.feed_forward
    }

    /// Draws every dropout mask of the block from `source` from now on, in the order of the forward pass.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        self.attention.set_dropout_source(source);
        self.attention.inner_mut().set_dropout_source(source);
        self.feed_forward.set_dropout_source(source);
        self.feed_forward.inner_mut().set_dropout_source(source);
    }

    /// The output in evaluation with nothing masked; shapes as [`Self::forward_with`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }

    /// The output under the context's mask and mode.
    ///
    /// # Shapes
    /// `[batch, seq, d_model]` to the same. `[seq, d_model]` is one sequence, `[d_model]` one position.
    ///
    /// # Errors
    /// If the width is not `d_model`, the rank is above 3, or a mask does not fit.
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        Ok(self.stages(x, context)?.feed_forward.output)
    }

    /// As [`Self::forward_with`], with everything computed on the way.
    pub fn stages(&self, x: &Tensor, context: &ForwardContext) -> Result<BlockStages> {
        let train = context.train();
        let attention = self
            .attention
            .stages(x, train, |inner, x| inner.forward_with(x, context))?;
        let feed_forward = self
            .feed_forward
            .stages(&attention.output, train, |inner, x| {
                inner.forward_t(x, train)
            })?;
        Ok(BlockStages {
            attention,
            feed_forward,
        })
    }
}

impl ModuleT for TransformerBlock {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation().with_train(train))
    }
}
