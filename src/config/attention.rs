//! The configuration of multi-head attention.

use serde::{Deserialize, Serialize};

use super::{
    LatentConfig, NormConfig, NormWeight, Position, PositionTemperature, finite, positive,
    probability, setters, size,
};
use crate::error::{Error, Result};

/// Which keys a query may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Visibility {
    /// All positions (encoders).
    Bidirectional,
    /// Itself and earlier positions (decoders).
    Causal,
}

/// Which of the four attention projections have a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct AttentionBias {
    /// Query projection.
    pub query: bool,
    /// Key projection.
    pub key: bool,
    /// Value projection.
    pub value: bool,
    /// Output projection.
    pub output: bool,
}

impl AttentionBias {
    /// All four have a bias.
    pub const ALL: Self = Self::new(true, true);
    /// None has a bias.
    pub const NONE: Self = Self::new(false, false);

    /// Sets whether query, key and value have a bias, and whether the output has one.
    pub const fn new(inputs: bool, output: bool) -> Self {
        Self {
            query: inputs,
            key: inputs,
            value: inputs,
            output,
        }
    }
}

/// The span of a row that a query or key norm normalises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryKeyNormSpan {
    /// Each head separately, all heads sharing one weight (Qwen 3, Gemma 3).
    Head,
    /// Each head separately, each with its own weight (Cohere, StableLM).
    EachHead,
    /// All heads together (OLMo 2).
    Whole,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryKeyNorm {
    /// The norm; its width is set by `span`.
    pub norm: NormConfig,
    /// The span that it normalises.
    pub span: QueryKeyNormSpan,
    /// Whether it comes after the rotary embedding (HunYuan), and not before.
    #[serde(default)]
    pub after_rotation: bool,
}

impl QueryKeyNorm {
    /// A norm of the given span, before the rotary embedding.
    pub fn new(norm: NormConfig, span: QueryKeyNormSpan) -> Self {
        Self {
            norm,
            span,
            after_rotation: false,
        }
    }

    /// Puts it after the rotary embedding.
    pub fn after_rotation(mut self) -> Self {
        self.after_rotation = true;
        self
    }
}

/// The configuration of multi-head attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct AttentionConfig {
    /// Width of the input and the output.
    pub d_model: usize,
    /// Width of the vectors that keys and values are computed from: `d_model`, except in cross-attention.
    pub d_memory: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key/value heads; each serves `n_heads / n_kv_heads` query heads.
    pub n_kv_heads: usize,
    /// Width of a head's query and key, and of its value unless [`Self::latent`] sets another.
    pub head_dim: usize,
    /// Factor on the scores before the softmax.
    pub scale: f64,
    /// Which keys a query may see.
    pub visibility: Visibility,
    /// The sliding window `w`, if any: causal attention sees the last `w` keys, its own position included; bidirectional
    /// attention sees the keys at most `w` positions away (transformers' `sliding_window`).
    pub window: Option<usize>,
    /// The length of the chunks that causal attention stays in, if any: a query sees the keys of its own chunk up to itself. The
    /// first chunk begins behind the padding on the left (Llama 4's `attention_chunk_size`; transformers'
    /// `chunked_causal_mask_function`, <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/masking_utils.py>).
    #[serde(default)]
    pub chunk: Option<usize>,
    /// Rotary embedding or position bias.
    pub position: Position,
    /// Norms of queries and keys, if any.
    pub query_key_norm: Option<QueryKeyNorm>,
    /// The latent that keys and values are made from, if any; then `bias.key` is that of its projection, and `bias.query`
    /// that of the first projection of queries.
    #[serde(default)]
    pub latent: Option<LatentConfig>,
    /// The earlier layer whose keys and values the queries attend to, in the place of own ones, if any; in self-attention alone
    /// (Gemma 3n and 4; transformers' `num_kv_shared_layers`). A cache keeps those of that layer alone.
    #[serde(default)]
    pub shared_keys: Option<usize>,
    /// Whether values are the projected keys, before what is done to these (Gemma 4's `attention_k_eq_v`).
    #[serde(default)]
    pub values_are_keys: bool,
    /// Divides the value of each head by its root mean square, `√(mean(v²) + eps)`, with this `eps`, if any (Gemma 3n and 4).
    #[serde(default)]
    pub value_norm: Option<f64>,
    /// A factor on queries that grows with their position, if any; in self-attention alone.
    #[serde(default)]
    pub temperature: Option<PositionTemperature>,
    /// Scores become `cap · tanh(score / cap)` (Gemma 2).
    pub soft_cap: Option<f64>,
    /// Whether each query head has a sink: a learned score that joins the softmax of each of its queries and has no value, so that
    /// the weights of the keys add up to less than 1 (gpt-oss; Xiao et al. 2023, <https://arxiv.org/abs/2309.17453>).
    #[serde(default)]
    pub sinks: bool,
    /// Queries, keys and values are clamped to `±clip` (MPT, OLMo).
    pub clip: Option<f64>,
    /// Which projections have a bias.
    pub bias: AttentionBias,
    /// Probability of dropping an attention weight in training.
    pub dropout: f64,
}

impl AttentionConfig {
    /// Bidirectional attention with biases, `head_dim = d_model / n_heads`, scale `1/√head_dim`, no dropout.
    ///
    /// # Errors
    /// If `n_heads` is zero or does not divide `d_model`.
    pub fn new(d_model: usize, n_heads: usize) -> Result<Self> {
        size("d_model", d_model)?;
        size("n_heads", n_heads)?;
        if !d_model.is_multiple_of(n_heads) {
            return Err(Error::InvalidConfig(format!(
                "{n_heads} heads do not divide the width {d_model}; choose a divisor, or set head_dim"
            )));
        }
        Ok(Self::with_head_dim(d_model, n_heads, d_model / n_heads))
    }

    /// Like [`Self::new`], but with heads whose widths need not add up to `d_model`.
    pub fn with_head_dim(d_model: usize, n_heads: usize, head_dim: usize) -> Self {
        Self {
            d_model,
            d_memory: d_model,
            n_heads,
            n_kv_heads: n_heads,
            head_dim,
            scale: 1.0 / (head_dim as f64).sqrt(),
            visibility: Visibility::Bidirectional,
            window: None,
            chunk: None,
            position: Position::None,
            query_key_norm: None,
            latent: None,
            shared_keys: None,
            values_are_keys: false,
            value_norm: None,
            temperature: None,
            soft_cap: None,
            sinks: false,
            clip: None,
            bias: AttentionBias::ALL,
            dropout: 0.0,
        }
    }

    setters! {
        /// Computes keys and values from vectors of width `d_memory` (cross-attention).
        with_memory(d_memory: usize) => d_memory = d_memory;
        /// Sets the number of key/value heads, which divides that of query heads (grouped-query or multi-query attention).
        with_kv_heads(n_kv_heads: usize) => n_kv_heads = n_kv_heads;
        /// Sets which keys a query may see.
        with_visibility(visibility: Visibility) => visibility = visibility;
        /// Sets the sliding window, or removes it.
        with_window(window: Option<usize>) => window = window;
        /// Sets the length of the chunks that causal attention stays in, or removes them.
        with_chunk(chunk: Option<usize>) => chunk = chunk;
        /// Sets the rotary embedding or position bias.
        with_position(position: Position) => position = position;
        /// Sets the norms of queries and keys, or removes them.
        with_query_key_norm(norm: Option<QueryKeyNorm>) => query_key_norm = norm;
        /// Sets the latent that keys and values are made from, or removes it.
        with_latent(latent: Option<LatentConfig>) => latent = latent;
        /// Sets the earlier layer whose keys and values the queries attend to, or lets the layer have its own.
        with_shared_keys(layer: Option<usize>) => shared_keys = layer;
        /// Sets whether values are the projected keys.
        with_values_as_keys(are_keys: bool) => values_are_keys = are_keys;
        /// Sets the `eps` of the norm of each head's value, or removes the norm.
        with_value_norm(eps: Option<f64>) => value_norm = eps;
        /// Sets the temperature by position, or removes it; `head_dim` is even then.
        with_temperature(temperature: Option<PositionTemperature>) => temperature = temperature;
        /// Sets the soft cap on the scores, or removes it.
        with_soft_cap(cap: Option<f64>) => soft_cap = cap;
        /// Sets whether each query head has a sink.
        with_sinks(sinks: bool) => sinks = sinks;
        /// Sets the bound that queries, keys and values are clamped to, or removes it.
        with_clip(clip: Option<f64>) => clip = clip;
        /// Sets which projections have a bias.
        with_bias(bias: AttentionBias) => bias = bias;
        /// Sets the factor on the scores.
        with_scale(scale: f64) => scale = scale;
        /// Sets the dropout probability of the attention weights.
        with_dropout(p: f64) => dropout = p;
    }

    /// Makes the attention causal: each query sees only itself and earlier positions.
    pub fn causal(self) -> Self {
        self.with_visibility(Visibility::Causal)
    }

    /// The width of all query heads together.
    pub fn query_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// The width of all key heads together, and of all value heads unless [`Self::latent`] sets another.
    pub fn key_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// The norm of one head's value.
    pub(crate) fn norm_of_values(&self, eps: f64) -> NormConfig {
        NormConfig::rms_norm(self.value_dim(), eps).with_weight(NormWeight::Absent)
    }

    /// The width of one head's value.
    pub fn value_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.value_dim)
    }

    /// The width of all heads' results together, which the output projection reads.
    pub fn mixed_width(&self) -> usize {
        self.n_heads * self.value_dim()
    }

    /// Checks sizes, divisibility, probabilities, and that every factor is finite.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] says which setting is wrong, and what is expected.
    pub fn validate(&self) -> Result<()> {
        size("d_model", self.d_model)?;
        size("d_memory", self.d_memory)?;
        size("n_heads", self.n_heads)?;
        size("n_kv_heads", self.n_kv_heads)?;
        size("head_dim", self.head_dim)?;
        size("the width of all heads together", self.query_width())?;
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return Err(Error::InvalidConfig(format!(
                "{} key/value heads do not divide {} query heads",
                self.n_kv_heads, self.n_heads
            )));
        }
        finite("the factor on the scores", self.scale)?;
        if let Some(cap) = self.soft_cap {
            positive("the soft cap on the scores", cap)?;
        }
        if let Some(clip) = self.clip
            && !(clip.is_finite() && clip > 0.0)
        {
            return Err(Error::InvalidConfig(format!(
                "queries, keys and values are clamped to ±{clip}; expected a positive number"
            )));
        }
        if let Some(query_key_norm) = &self.query_key_norm {
            query_key_norm.norm.validate_eps()?;
        }
        if let Some(temperature) = &self.temperature {
            temperature.validate()?;
            if !self.head_dim.is_multiple_of(2) {
                return Err(Error::InvalidConfig(format!(
                    "a temperature by position needs heads of an even width, found {}",
                    self.head_dim
                )));
            }
        }
        if let Some(eps) = self.value_norm {
            self.norm_of_values(eps).validate_eps()?;
        }
        let is_made = self.latent.is_some() || matches!(self.position, Position::Disentangled(_));
        let makes_fewer = self.shared_keys.is_some() || self.values_are_keys;
        if is_made && (makes_fewer || self.value_norm.is_some()) {
            let reason = "shared keys, values that are keys and norms of values are of attention without a latent or \
                          disentangled scores";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        if makes_fewer && self.d_memory != self.d_model {
            let reason = "shared keys, and values that are keys, are of self-attention, but d_memory is another than d_model";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        if self.shared_keys.is_some() && self.values_are_keys {
            let reason = "an attention to another layer's keys has that layer's values; set values_are_keys there alone";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        if self.window == Some(0) {
            return Err(Error::InvalidConfig("the sliding window is 0".to_string()));
        }
        if let Some(chunk) = self.chunk {
            size("the length of chunks", chunk)?;
            let fits = self.visibility == Visibility::Causal && self.window.is_none();
            if !fits || self.d_memory != self.d_model {
                let reason = "chunks are of causal self-attention without a window";
                return Err(Error::InvalidConfig(reason.to_string()));
            }
        }
        if self.sinks && matches!(self.position, Position::Alibi(_)) {
            // Which a softmax of keys alone would not notice.
            let reason = "a sink beside linear biases, which count from the last key, would depend on the length";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        match &self.latent {
            Some(latent) => latent.validate(self)?,
            None => self.position.validate(self)?,
        }
        probability("attention dropout", self.dropout)
    }
}
