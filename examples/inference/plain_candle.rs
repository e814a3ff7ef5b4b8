//! The same block built from candle-nn's layers, as candle-transformers does it.

use candle_blocks::{
    Activation, Attention, FeedForward, ForwardContext, Linear, Norm, Position, SublayerNorm,
    Topology, TransformerBlock, Visibility,
    candle_core::{D, DType, Module, Result, Tensor},
    candle_nn,
    config::{NormKind, NormWeight},
    layers::QueryKeyValue,
};

/// Attention and feed-forward, each with a LayerNorm before or after it.
pub struct PlainBlock {
    query: candle_nn::Linear,
    key: candle_nn::Linear,
    value: candle_nn::Linear,
    output: candle_nn::Linear,
    up: candle_nn::Linear,
    down: candle_nn::Linear,
    attention_norm: candle_nn::LayerNorm,
    feed_forward_norm: candle_nn::LayerNorm,
    activation: candle_nn::Activation,
    n_heads: usize,
    scale: f64,
    is_causal: bool,
    is_post_norm: bool,
}

impl PlainBlock {
    /// The equivalent of `block`, with the same weights; `None` for forms that are not supported here.
    pub fn of(block: &TransformerBlock) -> Option<Self> {
        let attention: &Attention = block.mixer().inner().attention().ok()?;
        let feed_forward: &FeedForward = block.feed_forward().inner().dense()?;
        let config = attention.config();
        let QueryKeyValue::Separate { query, key, value } = attention.projections() else {
            return None;
        };
        let is_plain = config.position == Position::None
            && block.topology() == Topology::Sequential
            && block.cross_attention().is_none()
            && attention.config().query_key_norm.is_none()
            && config.soft_cap.is_none()
            && config.window.is_none();
        if !is_plain || config.n_kv_heads != config.n_heads || feed_forward.gate().is_some() {
            return None;
        }
        let (attention_norm, feed_forward_norm, is_post_norm) =
            match (block.mixer().norm(), block.feed_forward().norm()) {
                (SublayerNorm::Pre(a), SublayerNorm::Pre(f)) => (a, f, false),
                (SublayerNorm::Post(a), SublayerNorm::Post(f)) => (a, f, true),
                _ => return None,
            };
        Some(Self {
            query: linear(query)?,
            key: linear(key)?,
            value: linear(value)?,
            output: linear(attention.output())?,
            up: linear(feed_forward.up())?,
            down: linear(feed_forward.down())?,
            attention_norm: layer_norm(attention_norm)?,
            feed_forward_norm: layer_norm(feed_forward_norm)?,
            activation: match feed_forward.activation() {
                Activation::Gelu => candle_nn::Activation::Gelu,
                Activation::GeluTanh => candle_nn::Activation::NewGelu,
                Activation::Relu => candle_nn::Activation::Relu,
                _ => return None,
            },
            n_heads: config.n_heads,
            scale: config.scale,
            is_causal: config.visibility == Visibility::Causal,
            is_post_norm,
        })
    }

    pub fn forward(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        let residual =
            |x: &Tensor, norm: &candle_nn::LayerNorm, inner: &dyn Fn(&Tensor) -> Result<Tensor>| {
                if self.is_post_norm {
                    norm.forward(&(x + inner(x)?)?)
                } else {
                    x + inner(&norm.forward(x)?)?
                }
            };
        let x = residual(x, &self.attention_norm, &|x| self.attend(x, context))?;
        residual(&x, &self.feed_forward_norm, &|x| {
            self.down
                .forward(&self.activation.forward(&self.up.forward(x)?)?)
        })
    }

    fn attend(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        let (batch, seq, width) = x.dims3()?;
        let heads = |t: Tensor| {
            t.reshape((batch, seq, self.n_heads, width / self.n_heads))?
                .transpose(1, 2)?
                .contiguous()
        };
        let query = heads(self.query.forward(x)?)?;
        let key = heads(self.key.forward(x)?)?;
        let value = heads(self.value.forward(x)?)?;
        let mut scores = (query.matmul(&key.t()?)? * self.scale)?;
        if let Some(keep) = context.mask().keep() {
            let dropped = (1.0 - keep.to_dtype(DType::F32)?)?.reshape((batch, 1, 1, seq))?;
            scores = scores.broadcast_add(&(dropped * f64::from(f32::MIN))?)?;
        }
        if self.is_causal {
            let hidden = Tensor::triu2(seq, DType::F32, x.device())?;
            let hidden = (hidden - Tensor::eye(seq, DType::F32, x.device())?)?;
            scores = scores.broadcast_add(&(hidden * f64::from(f32::MIN))?)?;
        }
        let weights = candle_nn::ops::softmax(&scores, D::Minus1)?;
        let mixed = weights
            .matmul(&value)?
            .transpose(1, 2)?
            .reshape((batch, seq, width))?;
        self.output.forward(&mixed)
    }
}

fn linear(linear: &Linear) -> Option<candle_nn::Linear> {
    let weight = linear.weight().ok()?;
    Some(candle_nn::Linear::new(weight, linear.bias().cloned()))
}

fn layer_norm(norm: &Norm) -> Option<candle_nn::LayerNorm> {
    let config = norm.config();
    let is_plain = config.kind == NormKind::LayerNorm && config.weight == NormWeight::Plain;
    let bias = norm.bias().cloned().filter(|_| is_plain)?;
    Some(candle_nn::LayerNorm::new(
        norm.weight().clone(),
        bias,
        config.eps,
    ))
}
