//! Multi-head self-attention.

use candle_core::{Module, ModuleT, Result, Tensor, bail};
use candle_nn::VarBuilder;

use crate::{
    config::AttentionConfig,
    layers::{AttentionMask, Dropout, DropoutSource, ForwardContext, Linear},
    ops::{self, Visible},
};

/// The input projections of an [`Attention`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum QueryKeyValue {
    /// One projection each.
    Separate {
        /// `[n_heads · head_dim, d_model]`.
        query: Linear,
        /// `[n_kv_heads · head_dim, d_model]`.
        key: Linear,
        /// `[n_kv_heads · head_dim, d_model]`.
        value: Linear,
    },
    /// One projection whose rows are the query's, the key's and the value's, in this order.
    Fused(Linear),
}

/// `output(softmax(scale · q·kᵀ + mask)·v)` per head (Vaswani et al. 2017,
/// <https://arxiv.org/abs/1706.03762>), with grouped key/value heads (Ainslie et al. 2023,
/// <https://arxiv.org/abs/2305.13245>).
///
/// Equals `torch.nn.functional.scaled_dot_product_attention` between its projections, except that a
/// query which sees no key gives zeros rather than NaN.
#[derive(Clone, Debug)]
pub struct Attention {
    projections: QueryKeyValue,
    output: Linear,
    dropout: Dropout,
    config: AttentionConfig,
}

impl Attention {
    /// Takes `query`, `key`, `value` (or, where `vb` holds it, the fused `query_key_value`) and
    /// `output` from `vb`.
    pub fn new(config: &AttentionConfig, vb: VarBuilder) -> Result<Self> {
        config.validate()?;
        let bias = config.bias;
        let (d_model, q, kv) = widths(config);
        let separate = |name, d_out, bias| Linear::new(d_model, d_out, bias, vb.pp(name));
        let projections = if vb.contains_tensor("query_key_value.weight") {
            QueryKeyValue::Fused(separate("query_key_value", q + 2 * kv, bias.query)?)
        } else {
            QueryKeyValue::Separate {
                query: separate("query", q, bias.query)?,
                key: separate("key", kv, bias.key)?,
                value: separate("value", kv, bias.value)?,
            }
        };
        let output = Linear::new(q, d_model, bias.output, vb.pp("output"))?;
        Self::from_parts(projections, output, config.clone())
    }

    /// Of the projections themselves.
    ///
    /// # Errors
    /// If a projection's shape does not fit the configuration.
    pub fn from_parts(
        projections: QueryKeyValue,
        output: Linear,
        config: AttentionConfig,
    ) -> Result<Self> {
        config.validate()?;
        let (d_model, q, kv) = widths(&config);
        let check = |name: &str, linear: &Linear, d_out: usize, d_in: usize| {
            if linear.weight().dims() != [d_out, d_in] {
                bail!(
                    "attention: {name} has shape {:?}, expected [{d_out}, {d_in}]",
                    linear.weight().dims()
                );
            }
            Ok(())
        };
        match &projections {
            QueryKeyValue::Separate { query, key, value } => {
                check("query", query, q, d_model)?;
                check("key", key, kv, d_model)?;
                check("value", value, kv, d_model)?;
            }
            QueryKeyValue::Fused(fused) => check("query_key_value", fused, q + 2 * kv, d_model)?,
        }
        check("output", &output, d_model, q)?;
        let dropout = Dropout::new(config.dropout, DropoutSource::default())?;
        Ok(Self {
            projections,
            output,
            dropout,
            config,
        })
    }

    /// Sizes, scale and visibility.
    pub fn config(&self) -> &AttentionConfig {
        &self.config
    }

    /// The input projections.
    pub fn projections(&self) -> &QueryKeyValue {
        &self.projections
    }

    /// The output projection, `[d_model, n_heads · head_dim]`.
    pub fn output(&self) -> &Linear {
        &self.output
    }

    /// Draws dropout masks from `source` from now on.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        self.dropout.set_source(source.clone());
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
        let (batch, seq) = match *x.dims() {
            [_] => (1, 1),
            [seq, _] => (1, seq),
            [batch, seq, _] => (batch, seq),
            _ => bail!(
                "attention: input has shape {:?}, expected [batch, seq, d_model], [seq, d_model] or [d_model]",
                x.dims()
            ),
        };
        let (query, key, value) = self.project(x)?;
        let dtype = ops::product_dtype(x);
        let heads = |t: Tensor, n_heads| {
            t.to_dtype(dtype)?
                .reshape((batch, seq, n_heads, self.config.head_dim))?
                .transpose(1, 2)? // [batch, n_heads, seq, head_dim]
                .contiguous()
        };
        let query = heads(query, self.config.n_heads)?.affine(self.config.scale, 0.0)?;
        let key = heads(key, self.config.n_kv_heads)?;
        let value = heads(value, self.config.n_kv_heads)?;
        let mixed = self.mix(&query, &key, &value, context)?; // [batch, n_heads, seq, head_dim]
        let (_, q, _) = widths(&self.config);
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = q;
        }
        let mixed = mixed.transpose(1, 2)?.reshape(dims)?;
        self.output.forward(&mixed.to_dtype(x.dtype())?)
    }

    /// Query, key and value, each `[.., width]`.
    fn project(&self, x: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
        match &self.projections {
            QueryKeyValue::Separate { query, key, value } => {
                Ok((query.forward(x)?, key.forward(x)?, value.forward(x)?))
            }
            QueryKeyValue::Fused(fused) => {
                let (_, q, kv) = widths(&self.config);
                let all = fused.forward(x)?;
                let last = all.rank() - 1;
                Ok((
                    all.narrow(last, 0, q)?,
                    all.narrow(last, q, kv)?,
                    all.narrow(last, q + kv, kv)?,
                ))
            }
        }
    }

    /// `softmax(q·kᵀ + mask)·v` of scaled queries, all `[batch, heads, seq, head_dim]`.
    fn mix(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        context: &ForwardContext,
    ) -> Result<Tensor> {
        let (batch, n_heads, queries, head_dim) = query.dims4()?;
        let (_, n_kv_heads, keys, _) = key.dims4()?;
        // The query heads of one key/value head lie side by side: stack them as more rows.
        let rows = n_heads / n_kv_heads * queries;
        let scores = query
            .reshape((batch, n_kv_heads, rows, head_dim))?
            .matmul(&key.transpose(2, 3)?)?
            .reshape((batch, n_heads, queries, keys))?;
        let mask: &AttentionMask = context.mask();
        mask.check(batch, keys)?;
        let scores = match mask.additive() {
            Some(additive) => scores.broadcast_add(&additive.to_dtype(scores.dtype())?)?,
            None => scores,
        };
        let visible = Visible {
            keep: mask.keep(),
            visibility: self.config.visibility,
            window: None,
            first_query: 0,
        };
        let weights = ops::attention_softmax(&scores, &visible)?;
        self.dropout
            .forward_t(&weights, context.train())?
            .reshape((batch, n_kv_heads, rows, keys))?
            .matmul(value)?
            .reshape((batch, n_heads, queries, head_dim))
    }
}

impl ModuleT for Attention {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation().with_train(train))
    }
}

/// `d_model`, the width of all query heads, the width of all key (or value) heads.
fn widths(config: &AttentionConfig) -> (usize, usize, usize) {
    (
        config.d_model,
        config.n_heads * config.head_dim,
        config.n_kv_heads * config.head_dim,
    )
}
