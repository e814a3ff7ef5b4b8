//! Pooling by attention.

use candle_core::{ModuleT, Result, Tensor};
use candle_nn::Init;

use crate::config::{AttentionPoolConfig, getters};
use crate::layers::{
    Attention, AttentionMask, FeedForward, ForwardContext, Norm, ParameterSource, visit::parts,
};

/// Pools a sequence to one vector: `x + feed_forward(norm(x))`, where `x` is the attention of a learned query to all
/// positions (transformers' `SiglipMultiheadAttentionPoolingHead`).
///
/// Names in a `VarBuilder`: `probe`, `attention`, `norm`, `feed_forward`.
#[derive(Clone, Debug)]
pub struct AttentionPool {
    config: AttentionPoolConfig,
    probe: Tensor, // [d_model]
    attention: Attention,
    norm: Norm,
    feed_forward: FeedForward,
}

impl AttentionPool {
    /// Creates the layer with `probe.weight` `[d_model]`, `attention`, `norm` and `feed_forward` from `vb`.
    ///
    /// # Errors
    /// If the configuration is invalid, or a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &AttentionPoolConfig,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        let init = Init::Randn {
            mean: 0.0,
            stdev: 1.0,
        };
        let d_model = config.attention.d_model;
        Ok(Self {
            probe: vb.pp("probe").get_with_hints(d_model, "weight", init)?,
            attention: Attention::new(&config.attention, vb.pp("attention"))?,
            norm: Norm::new(&config.norm, vb.pp("norm"))?,
            feed_forward: FeedForward::new(&config.feed_forward, vb.pp("feed_forward"))?,
            config: config.clone(),
        })
    }

    getters! {
        /// The configuration.
        config(&self) -> &AttentionPoolConfig => &self.config;
    }

    /// Pools `x` `[batch, seq, d_model]` to `[batch, d_model]`.
    ///
    /// # Errors
    /// If `x` has another shape.
    pub fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        let (batch, _, d_model) = x.dims3()?;
        let probe = self.probe.broadcast_as((batch, 1, d_model))?.contiguous()?;
        let context = ForwardContext::evaluation()
            .with_train(train)
            .with_encoder_output(x.clone(), AttentionMask::none());
        let seen = self.attention.forward_cross(&probe, &context)?;
        let fed = self
            .feed_forward
            .forward_t(&candle_core::Module::forward(&self.norm, &seen)?, train)?;
        (seen + fed)?.squeeze(1)
    }
}

parts!(AttentionPool: Self { attention, feed_forward, .. } => [] [attention, feed_forward]);
