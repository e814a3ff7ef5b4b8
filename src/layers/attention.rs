//! Multi-head attention: to the sequence itself, or to an encoder's output.

use candle_core::{ModuleT, Result, Tensor, bail};
use candle_nn::VarBuilder;

use crate::{
    config::{AttentionConfig, Position, Visibility},
    layers::{
        AttentionMask, Dropout, DropoutSource, ForwardContext, Linear, kv_cache::LayerCache,
        pass::Pass, position::alibi_bias,
    },
    ops::{self, Visible},
};

mod query_key_norm;

pub use query_key_norm::QueryKeyNorms;

/// The input projections of an [`Attention`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum QueryKeyValue {
    /// One projection each.
    Separate {
        /// `[n_heads · head_dim, d_model]`.
        query: Linear,
        /// `[n_kv_heads · head_dim, d_memory]`.
        key: Linear,
        /// `[n_kv_heads · head_dim, d_memory]`.
        value: Linear,
    },
    /// One projection whose rows are the query's, the key's and the value's, in this order.
    Fused(Linear),
}

/// `output(softmax(scale · q·kᵀ + mask)·v)` per head (Vaswani et al. 2017,
/// <https://arxiv.org/abs/1706.03762>), with grouped key/value heads (Ainslie et al. 2023,
/// <https://arxiv.org/abs/2305.13245>), and whatever else [`AttentionConfig`] names.
///
/// Equals `torch.nn.functional.scaled_dot_product_attention` between its projections, except that a
/// query which sees no key gives zeros rather than NaN.
#[derive(Clone, Debug)]
pub struct Attention {
    projections: QueryKeyValue,
    output: Linear,
    norms: Option<QueryKeyNorms>,
    dropout: Dropout,
    config: AttentionConfig,
}

impl Attention {
    /// Takes `query`, `key`, `value` (or, where `vb` holds it, the fused `query_key_value`), `output`
    /// and, if configured, `query_norm` and `key_norm` from `vb`.
    pub fn new(config: &AttentionConfig, vb: VarBuilder) -> Result<Self> {
        config.validate()?;
        let bias = config.bias;
        let (q, kv) = (config.query_width(), config.key_width());
        let linear = |name, d_in, d_out, bias| Linear::new(d_in, d_out, bias, vb.pp(name));
        let (d_model, d_memory) = (config.d_model, config.d_memory);
        let projections = if vb.contains_tensor("query_key_value.weight") {
            QueryKeyValue::Fused(linear("query_key_value", d_model, q + 2 * kv, bias.query)?)
        } else {
            QueryKeyValue::Separate {
                query: linear("query", d_model, q, bias.query)?,
                key: linear("key", d_memory, kv, bias.key)?,
                value: linear("value", d_memory, kv, bias.value)?,
            }
        };
        let output = linear("output", q, d_model, bias.output)?;
        let norms = QueryKeyNorms::new(config, &vb)?;
        Ok(Self {
            norms,
            ..Self::from_parts(projections, output, config.clone())?
        })
    }

    /// Of the projections themselves, without query and key norms.
    ///
    /// # Errors
    /// If a projection's shape does not fit the configuration.
    pub fn from_parts(
        projections: QueryKeyValue,
        output: Linear,
        config: AttentionConfig,
    ) -> Result<Self> {
        config.validate()?;
        let dropout = Dropout::new(config.dropout, DropoutSource::default())?;
        let attention = Self {
            projections,
            output,
            norms: None,
            dropout,
            config,
        };
        attention.check_shapes()?;
        Ok(attention)
    }

    /// # Errors
    /// If a projection's shape does not fit the configuration.
    pub(crate) fn check_shapes(&self) -> Result<()> {
        let config = &self.config;
        let (q, kv) = (config.query_width(), config.key_width());
        let check =
            |role: &str, linear: &Linear, shape| linear.expect_shape("attention", role, shape);
        match &self.projections {
            QueryKeyValue::Separate { query, key, value } => {
                check("query", query, [q, config.d_model])?;
                check("key", key, [kv, config.d_memory])?;
                check("value", value, [kv, config.d_memory])?;
            }
            QueryKeyValue::Fused(fused) => {
                check("query_key_value", fused, [q + 2 * kv, config.d_model])?;
            }
        }
        check("output", &self.output, [config.d_model, q])
    }

    /// With norms of queries and keys.
    pub fn with_norms(mut self, norms: QueryKeyNorms) -> Self {
        self.norms = Some(norms);
        self
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

    /// Norms of queries and keys.
    pub fn norms(&self) -> Option<&QueryKeyNorms> {
        self.norms.as_ref()
    }

    /// Draws dropout masks from `source` from now on.
    pub fn set_dropout_source(&mut self, source: &DropoutSource) {
        self.dropout.set_source(source.clone());
        for (_, linear) in self.linears_mut("") {
            linear.set_dropout_source(source);
        }
    }

    /// The linear layers by role, below the given one.
    pub(super) fn linears_mut(&mut self, role: &str) -> Vec<(String, &mut Linear)> {
        let mut linears = match &mut self.projections {
            QueryKeyValue::Separate { query, key, value } => {
                vec![("query", query), ("key", key), ("value", value)]
            }
            QueryKeyValue::Fused(fused) => vec![("query_key_value", fused)],
        };
        linears.push(("output", &mut self.output));
        linears
            .into_iter()
            .map(|(name, linear)| (format!("{role}.{name}"), linear))
            .collect()
    }

    /// Everything that draws a mask.
    pub(super) fn dropouts(&self) -> Vec<&Dropout> {
        let linears = match &self.projections {
            QueryKeyValue::Separate { query, key, value } => vec![query, key, value, &self.output],
            QueryKeyValue::Fused(fused) => vec![fused, &self.output],
        };
        let adapters = linears.into_iter().filter_map(Linear::adapter);
        adapters
            .map(|adapter| &adapter.dropout)
            .chain([&self.dropout])
            .collect()
    }

    /// The output in evaluation with nothing masked; shapes as [`Self::forward_with`].
    pub fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation())
    }

    /// Self-attention under the context's mask, positions and mode.
    ///
    /// # Shapes
    /// `[batch, seq, d_model]` to the same. `[seq, d_model]` is one sequence, `[d_model]` one position.
    ///
    /// # Errors
    /// If the width is not `d_model`, the rank is above 3, or a mask does not fit.
    pub fn forward_with(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        self.attend(x, &Pass::new(context), None)
    }

    /// Attention to the context's memory, an encoder's output.
    ///
    /// # Shapes
    /// `x` `[batch, seq, d_model]`, the memory `[batch, encoder_seq, d_memory]`, to the shape of `x`.
    ///
    /// # Errors
    /// If the context has no memory, or shapes do not fit.
    pub fn forward_cross(&self, x: &Tensor, context: &ForwardContext) -> Result<Tensor> {
        self.attend_memory(x, context, None)
    }

    /// Self-attention in a pass, behind the cached positions.
    pub(crate) fn attend(
        &self,
        x: &Tensor,
        pass: &Pass,
        cache: Option<&mut LayerCache>,
    ) -> Result<Tensor> {
        let (batch, seq) = batch_and_seq(x)?;
        let train = pass.context.train();
        let (query, key, value) = self.project(x, train)?;
        let fused = self.is_fused(x, pass.additive.as_ref(), train);
        if fused && self.mixes_projections() && cache.is_none() && x.rank() == 3 {
            let wide = |t: Tensor| t.to_dtype(ops::product_dtype(&t));
            let (query, key, value) = (wide(query)?, wide(key)?, wide(value)?);
            if let Some(keep) = &pass.keep
                && keep.dims() != [batch, seq]
            {
                AttentionMask::padding(keep)?.check(batch, seq)?;
            }
            let visible = self.visible(pass.keep.as_ref(), 0);
            let mixed = self.mix(&query, &key, &value, None, &visible, train)?;
            return self.merge(mixed, x, train);
        }
        let query = self.heads(&query, (batch, seq), Role::Query)?;
        let key = self.heads(&key, (batch, seq), Role::Key)?;
        let value = self.heads(&value, (batch, seq), Role::Value)?;
        let (query, key) = match &self.config.position {
            Position::Rotary(rotary) => {
                let tables = pass.rotary_tables(rotary, seq, query.dtype(), query.device())?;
                let rotate = |t| ops::rotate(t, &tables.cos, &tables.sin, rotary.pairing);
                (rotate(&query)?, rotate(&key)?)
            }
            _ => (query, key),
        };
        let (key, value) = match cache {
            Some(cache) => cache.append(&key, &value, self.config.window)?,
            None => (key, value),
        };
        let keys = key.dim(2)?;
        // A window may have dropped the oldest keys.
        let keep = match &pass.keep {
            None => None,
            Some(keep) => {
                let all = pass.seen + seq;
                if keep.dims() != [batch, all] {
                    AttentionMask::padding(keep)?.check(batch, all)?;
                }
                Some(keep.narrow(1, all - keys, keys)?.contiguous()?)
            }
        };
        let visible = self.visible(keep.as_ref(), keys - seq);
        let mixed = self.mix(
            &query,
            &key,
            &value,
            pass.additive.as_ref(),
            &visible,
            train,
        )?;
        self.merge(mixed, x, train)
    }

    /// Attention to the context's memory, whose keys and values the cache keeps.
    pub(crate) fn attend_memory(
        &self,
        x: &Tensor,
        context: &ForwardContext,
        cache: Option<&mut LayerCache>,
    ) -> Result<Tensor> {
        let (batch, seq) = batch_and_seq(x)?;
        let train = context.train();
        let Some(memory) = context.memory() else {
            bail!(
                "cross-attention: no encoder_hidden_states given; see ForwardContext::with_memory"
            )
        };
        let QueryKeyValue::Separate { query, key, value } = &self.projections else {
            bail!("cross-attention needs separate projections of query, key and value")
        };
        let (memory_batch, keys) = batch_and_seq(&memory.hidden_states)?;
        if memory_batch != batch {
            bail!("encoder_hidden_states: a batch of {memory_batch}, expected {batch}");
        }
        memory.mask.check(batch, keys)?;
        let query = self.heads(&query.forward_t(x, train)?, (batch, seq), Role::Query)?;
        let project = || -> Result<(Tensor, Tensor)> {
            let heads = |linear: &Linear, role| {
                let projected = linear.forward_t(&memory.hidden_states, train)?;
                self.heads(&projected, (batch, keys), role)
            };
            Ok((heads(key, Role::Key)?, heads(value, Role::Value)?))
        };
        let (key, value) = match cache {
            None => project()?,
            Some(cache) => match &cache.memory {
                Some(known) => known.clone(),
                None => cache.memory.insert(project()?).clone(),
            },
        };
        let visible = Visible {
            keep: memory.mask.keep(),
            visibility: Visibility::Bidirectional,
            window: None,
            first_query: 0,
        };
        let additive = memory.mask.additive();
        let mixed = self.mix(&query, &key, &value, additive, &visible, train)?;
        self.merge(mixed, x, train)
    }

    /// Query, key and value, each `[.., width]`.
    fn project(&self, x: &Tensor, train: bool) -> Result<(Tensor, Tensor, Tensor)> {
        match &self.projections {
            QueryKeyValue::Separate { query, key, value } => {
                let project = |linear: &Linear| linear.forward_t(x, train);
                Ok((project(query)?, project(key)?, project(value)?))
            }
            QueryKeyValue::Fused(fused) => {
                let (q, kv) = (self.config.query_width(), self.config.key_width());
                let all = fused.forward_t(x, train)?;
                let last = all.rank() - 1;
                Ok((
                    all.narrow(last, 0, q)?,
                    all.narrow(last, q, kv)?,
                    all.narrow(last, q + kv, kv)?,
                ))
            }
        }
    }

    /// `[.., n_heads · head_dim]` to `[batch, n_heads, seq, head_dim]`, clamped and normalised.
    fn heads(&self, x: &Tensor, (batch, seq): (usize, usize), role: Role) -> Result<Tensor> {
        let n_heads = match role {
            Role::Query => self.config.n_heads,
            Role::Key | Role::Value => self.config.n_kv_heads,
        };
        let x = x.to_dtype(ops::product_dtype(x))?;
        let x = match self.config.clip {
            Some(clip) => x.clamp(-clip, clip)?,
            None => x,
        };
        let x = match (&self.norms, role) {
            (Some(norms), Role::Query) => norms.query(&x, n_heads)?,
            (Some(norms), Role::Key) => norms.key(&x, n_heads)?,
            _ => x,
        };
        x.reshape((batch, seq, n_heads, self.config.head_dim))?
            .transpose(1, 2)?
            .contiguous()
    }

    /// What queries from the `first_query`th position on see of themselves and what is before.
    fn visible<'a>(&self, keep: Option<&'a Tensor>, first_query: usize) -> Visible<'a> {
        Visible {
            keep,
            visibility: self.config.visibility,
            window: self.config.window,
            first_query,
        }
    }

    /// Whether projections can be mixed as they are: nothing is done to queries or keys alone.
    fn mixes_projections(&self) -> bool {
        let unmoved = !matches!(self.config.position, Position::Rotary(_));
        unmoved && self.norms.is_none() && self.config.clip.is_none()
    }

    /// Whether softmax of what is seen is all that lies between scores and weights, on a CPU.
    fn is_fused(&self, x: &Tensor, additive: Option<&Tensor>, train: bool) -> bool {
        let no_bias = additive.is_none() && !matches!(self.config.position, Position::Alibi(_));
        let no_dropout = !train || self.dropout.p() == 0.0;
        no_bias && no_dropout && self.config.soft_cap.is_none() && x.device().is_cpu()
    }

    /// `softmax(scale · q·kᵀ + additive)·v` of `[batch, heads, seq, head_dim]`, to `[batch, queries, n_heads · head_dim]`.
    fn mix(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        additive: Option<&Tensor>,
        visible: &Visible,
        train: bool,
    ) -> Result<Tensor> {
        if self.is_fused(query, additive, train) {
            let mixing = ops::Mixing {
                n_heads: self.config.n_heads,
                n_kv_heads: self.config.n_kv_heads,
                scale: self.config.scale,
                visible,
            };
            return ops::mix(query, key, value, &mixing);
        }
        let (batch, n_heads, queries, head_dim) = query.dims4()?;
        let (_, n_kv_heads, keys, _) = key.dims4()?;
        // The query heads of one key/value head lie side by side: stack them as more rows.
        let rows = n_heads / n_kv_heads * queries;
        let stacked = query
            .affine(self.config.scale, 0.0)?
            .reshape((batch, n_kv_heads, rows, head_dim))?;
        let mut scores = ops::batched_product(&stacked, &key.transpose(2, 3)?)?
            .reshape((batch, n_heads, queries, keys))?;
        if let Some(cap) = self.config.soft_cap {
            scores = scores.affine(1.0 / cap, 0.0)?.tanh()?.affine(cap, 0.0)?;
        }
        if let Position::Alibi(alibi) = &self.config.position {
            let bias = alibi_bias(alibi, n_heads, keys, visible.keep)?;
            let bias = bias.to_device(scores.device())?.to_dtype(scores.dtype())?;
            scores = scores.broadcast_add(&bias)?;
        }
        if let Some(additive) = additive {
            scores = scores.broadcast_add(&additive.to_dtype(scores.dtype())?)?;
        }
        let weights = ops::attention_softmax(&scores, visible)?;
        let weights = self.dropout.forward_t(&weights, train)?;
        let weights = weights.reshape((batch, n_kv_heads, rows, keys))?;
        ops::batched_product(&weights, value)?
            .reshape((batch, n_heads, queries, head_dim))?
            .transpose(1, 2)?
            .reshape((batch, queries, n_heads * head_dim))
    }

    /// `[batch, seq, n_heads · head_dim]` through the output projection, in the shape and type of `x`.
    fn merge(&self, mixed: Tensor, x: &Tensor, train: bool) -> Result<Tensor> {
        let mixed = match x.rank() {
            3 => mixed,
            _ => {
                let mut dims = x.dims().to_vec();
                if let Some(last) = dims.last_mut() {
                    *last = self.config.query_width();
                }
                mixed.reshape(dims)?
            }
        };
        self.output.forward_t(&mixed.to_dtype(x.dtype())?, train)
    }
}

impl ModuleT for Attention {
    fn forward_t(&self, x: &Tensor, train: bool) -> Result<Tensor> {
        self.forward_with(x, &ForwardContext::evaluation().with_train(train))
    }
}

/// Which of the three projections.
#[derive(Clone, Copy)]
enum Role {
    Query,
    Key,
    Value,
}

/// `[d]` is one position, `[seq, d]` one sequence.
pub(crate) fn batch_and_seq(x: &Tensor) -> Result<(usize, usize)> {
    match *x.dims() {
        [_] => Ok((1, 1)),
        [seq, _] => Ok((1, seq)),
        [batch, seq, _] => Ok((batch, seq)),
        _ => bail!(
            "attention: input has shape {:?}, expected [batch, seq, d_model], [seq, d_model] or [d_model]",
            x.dims()
        ),
    }
}
