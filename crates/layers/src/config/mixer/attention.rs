//! The configuration of multi-head attention.

use serde::{Deserialize, Serialize};

use crate::config::{
    Activation, LatentConfig, NormConfig, NormWeight, Position, PositionTemperature, finite,
    positive, probability, setters, size,
};
use crate::error::{Error, Result};

/// The keys visible to a query. Set them in [`AttentionConfig::visibility`](crate::AttentionConfig::visibility).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Visibility {
    /// Every query sees all positions (encoders).
    Bidirectional,
    /// A query sees itself and earlier positions (decoders).
    Causal,
}

/// The biases of the four attention projections. Set them in [`AttentionConfig::bias`](crate::AttentionConfig::bias).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[must_use]
pub struct AttentionBias {
    /// The query projection has a bias.
    pub query: bool,
    /// The key projection has a bias.
    pub key: bool,
    /// The value projection has a bias.
    pub value: bool,
    /// The output projection has a bias.
    pub output: bool,
}

impl AttentionBias {
    /// All four projections have a bias.
    pub const ALL: Self = Self::new(true, true);
    /// No projection has a bias.
    pub const NONE: Self = Self::new(false, false);

    /// Sets `query`, `key` and `value` to `inputs`, and `output` to `output`.
    pub const fn new(inputs: bool, output: bool) -> Self {
        Self {
            query: inputs,
            key: inputs,
            value: inputs,
            output,
        }
    }
}

/// The dimensions that a query or key norm covers. Set them in [`QueryKeyNorm::span`](crate::config::QueryKeyNorm::span).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryKeyNormSpan {
    /// Each head alone, with one weight for all heads (Qwen 3, Gemma 3).
    Head,
    /// Each head alone, with its own weight (Cohere, StableLM).
    EachHead,
    /// All heads together (OLMo 2).
    Whole,
}

/// Query and key norms. Set them in [`AttentionConfig::query_key_norm`](crate::AttentionConfig::query_key_norm).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QueryKeyNorm {
    /// The norm. `span` sets its width.
    pub norm: NormConfig,
    /// The dimensions that the norm covers.
    pub span: QueryKeyNormSpan,
    /// Applies the norm after the rotary embedding (HunYuan) instead of before.
    #[serde(default)]
    pub after_rotation: bool,
}

impl QueryKeyNorm {
    /// Returns a norm over `span`, before the rotary embedding.
    pub fn new(norm: NormConfig, span: QueryKeyNormSpan) -> Self {
        Self {
            norm,
            span,
            after_rotation: false,
        }
    }

    /// Applies the norm after the rotary embedding.
    pub fn after_rotation(mut self) -> Self {
        self.after_rotation = true;
        self
    }
}

/// The part of attention's result that one gate multiplies. Set it in [`OutputGate::span`](crate::config::OutputGate::span).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutputGateSpan {
    /// One channel of a head (AFMoE).
    Channel,
    /// All channels of a head (Laguna, Step 3.5).
    Head,
}

/// A gate on the heads' results: `output(activation(gate(x)) · mixed)` (Qiu et al. 2025,
/// <https://arxiv.org/abs/2505.06708>). Set it in
/// [`AttentionConfig::output_gate`](crate::AttentionConfig::output_gate).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OutputGate {
    /// The activation after the gate's projection.
    pub activation: Activation,
    /// The part of the result that one gate multiplies.
    pub span: OutputGateSpan,
}

impl OutputGate {
    /// Returns a gate with this activation for each `span`.
    pub fn new(activation: Activation, span: OutputGateSpan) -> Self {
        Self { activation, span }
    }
}

/// The configuration of multi-head attention. Pass it to [`Attention::new`](crate::Attention::new).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct AttentionConfig {
    /// The width of the input and the output.
    pub d_model: usize,
    /// The key and value source's width: `d_model`, except in cross-attention.
    pub d_encoder: usize,
    /// How many query heads there are.
    pub n_heads: usize,
    /// How many key/value heads there are. Each serves `n_heads / n_kv_heads` query heads.
    pub n_kv_heads: usize,
    /// The width of each head's query and key, and of its value unless [`Self::latent`] sets another.
    pub head_dim: usize,
    /// The factor on the scores before the softmax.
    pub scale: f64,
    /// The keys visible to a query.
    pub visibility: Visibility,
    /// The sliding window `w` (transformers' `sliding_window`). Causal attention sees the last `w` keys, including
    /// the query's own position. Bidirectional attention sees the keys at most `w` positions away.
    pub window: Option<usize>,
    /// The chunk length for causal attention in chunks: a query sees the keys in its own chunk up to its position.
    /// The first chunk begins after left padding (Llama 4's `attention_chunk_size`; transformers'
    /// `chunked_causal_mask_function`,
    /// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/masking_utils.py>).
    #[serde(default)]
    pub chunk: Option<usize>,
    /// Rotary embedding or position bias.
    pub position: Position,
    /// Query and key norms.
    pub query_key_norm: Option<QueryKeyNorm>,
    /// Multi-head latent attention. `bias.key` then means the bias in the key/value latent's projection, and
    /// `bias.query` the bias in the first query projection.
    #[serde(default)]
    pub latent: Option<LatentConfig>,
    /// The earlier layer that provides keys and values in place of the layer's own, in self-attention only (Gemma 3n
    /// and 4; transformers' `num_kv_shared_layers`). A cache stores only that layer's keys and values.
    #[serde(default)]
    pub shared_keys: Option<usize>,
    /// Takes the projected keys, before norm and rotation, for values (Gemma 4's `attention_k_eq_v`).
    #[serde(default)]
    pub values_are_keys: bool,
    /// The `eps` for an RMSNorm without weight on each head's value, `v / √(mean(v²) + eps)` (Gemma 3n and 4).
    #[serde(default)]
    pub value_norm: Option<f64>,
    /// A query factor that grows with the position, in self-attention only.
    #[serde(default)]
    pub temperature: Option<PositionTemperature>,
    /// The soft cap on scores: `cap · tanh(score / cap)` (Gemma 2).
    pub soft_cap: Option<f64>,
    /// Adds a sink to each query head: a learned score without a value that takes part in the softmax, so that the
    /// weights of the keys add up to less than 1 (gpt-oss; Xiao et al. 2023, <https://arxiv.org/abs/2309.17453>).
    #[serde(default)]
    pub sinks: bool,
    /// The gate on the heads' results, in self-attention.
    #[serde(default)]
    pub output_gate: Option<OutputGate>,
    /// The norm over all heads' results together, before the output projection (Sub-LayerNorm, Wang et al. 2022,
    /// <https://arxiv.org/abs/2210.06423>; KOSMOS-2, BitNet). The heads set its width.
    #[serde(default)]
    pub sub_norm: Option<NormConfig>,
    /// The bound for queries, keys and values, which are clamped to `±clip` (MPT, OLMo).
    pub clip: Option<f64>,
    /// The projection biases.
    pub bias: AttentionBias,
    /// The dropout probability for attention weights.
    pub dropout: f64,
    /// The range of the whole layer's heads that a rank computes, if this is a rank's part of the layer.
    #[serde(skip)]
    #[doc(hidden)]
    pub heads_of_rank: Option<HeadsOfRank>,
}

/// One rank's query heads.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(hidden)]
pub struct HeadsOfRank {
    /// The first one's index.
    pub first: usize,
    /// Their number.
    pub own: usize,
    /// How many heads all ranks have together.
    pub all: usize,
}

impl AttentionConfig {
    /// Returns bidirectional attention with biases, `head_dim = d_model / n_heads`, scale `1/√head_dim`, no dropout.
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

    /// Like [`Self::new`], with any head width: `n_heads · head_dim` may differ from `d_model`.
    pub fn with_head_dim(d_model: usize, n_heads: usize, head_dim: usize) -> Self {
        Self {
            d_model,
            d_encoder: d_model,
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
            output_gate: None,
            sub_norm: None,
            clip: None,
            bias: AttentionBias::ALL,
            dropout: 0.0,
            heads_of_rank: None,
        }
    }

    setters! {
        /// Sets the width of the key and value source (cross-attention).
        with_encoder_width(d_encoder: usize) => d_encoder = d_encoder;
        /// Sets how many key/value heads there are, a divisor of the query heads (grouped-query or multi-query
        /// attention).
        with_kv_heads(n_kv_heads: usize) => n_kv_heads = n_kv_heads;
        /// Sets the keys visible to a query.
        with_visibility(visibility: Visibility) => visibility = visibility;
        /// Sets the sliding window, or removes it.
        with_window(window: Option<usize>) => window = window;
        /// Sets the chunk length for causal attention in chunks, or removes the chunks.
        with_chunk(chunk: Option<usize>) => chunk = chunk;
        /// Sets the rotary embedding or position bias.
        with_position(position: Position) => position = position;
        /// Sets the query and key norms, or removes them.
        with_query_key_norm(norm: Option<QueryKeyNorm>) => query_key_norm = norm;
        /// Sets the configuration of latent attention, or removes it.
        with_latent(latent: Option<LatentConfig>) => latent = latent;
        /// Sets the earlier layer that provides keys and values, or gives the layer its own.
        with_shared_keys(layer: Option<usize>) => shared_keys = layer;
        /// Sets whether the projected keys are also the values.
        with_values_as_keys(are_keys: bool) => values_are_keys = are_keys;
        /// Sets the `eps` for the norm on each head's value, or removes the norm.
        with_value_norm(eps: Option<f64>) => value_norm = eps;
        /// Sets the temperature by position, or removes it. `head_dim` must then be even.
        with_temperature(temperature: Option<PositionTemperature>) => temperature = temperature;
        /// Sets the soft cap on the scores, or removes it.
        with_soft_cap(cap: Option<f64>) => soft_cap = cap;
        /// Sets whether each query head has a sink.
        with_sinks(sinks: bool) => sinks = sinks;
        /// Sets the gate on the heads' results, or removes it.
        with_output_gate(gate: Option<OutputGate>) => output_gate = gate;
        /// Sets the norm before the output projection, or removes it.
        with_sub_norm(norm: Option<NormConfig>) => sub_norm = norm;
        /// Sets the bound for queries, keys and values, or removes it.
        with_clip(clip: Option<f64>) => clip = clip;
        /// Sets the projection biases.
        with_bias(bias: AttentionBias) => bias = bias;
        /// Sets the factor on the scores.
        with_scale(scale: f64) => scale = scale;
        /// Sets the dropout probability for attention weights.
        with_dropout(p: f64) => dropout = p;
    }

    /// Makes the attention causal: each query sees only itself and earlier positions.
    pub fn causal(self) -> Self {
        self.with_visibility(Visibility::Causal)
    }

    /// Returns all query heads' width together.
    pub fn query_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Returns the width of all key heads together, and of all value heads unless [`Self::latent`] sets another.
    pub fn key_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Returns the norm for a head's value.
    pub(crate) fn norm_of_values(&self, eps: f64) -> NormConfig {
        NormConfig::rms_norm(self.value_dim(), eps).with_weight(NormWeight::Absent)
    }

    /// Returns a head's value width.
    pub fn value_dim(&self) -> usize {
        self.latent.map_or(self.head_dim, |latent| latent.value_dim)
    }

    /// Returns the width of all heads' results together, the output projection's input.
    pub fn mixed_width(&self) -> usize {
        self.n_heads * self.value_dim()
    }

    /// Returns how many gates the heads' results have: the gate projection's output width.
    pub(crate) fn gate_width(&self) -> usize {
        match self.output_gate.map(|gate| gate.span) {
            None => 0,
            Some(OutputGateSpan::Channel) => self.mixed_width(),
            Some(OutputGateSpan::Head) => self.n_heads,
        }
    }

    /// Checks sizes, divisibility and probabilities, and that every factor is finite.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] names the wrong setting and says what is expected.
    pub fn validate(&self) -> Result<()> {
        size("d_model", self.d_model)?;
        size("d_encoder", self.d_encoder)?;
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
        if let Some(sub_norm) = &self.sub_norm {
            sub_norm.validate_eps()?;
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
        let is_made = self.latent.is_some() || self.position.distances().is_some();
        let makes_fewer = self.shared_keys.is_some() || self.values_are_keys;
        if is_made && (makes_fewer || self.value_norm.is_some()) {
            let reason = "shared keys, values that are keys and norms of values are of attention without a latent, \
                          disentangled scores or a gated bias";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        if makes_fewer && self.d_encoder != self.d_model {
            let reason = "shared_keys and values_are_keys require self-attention, but d_encoder differs from d_model";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        if self.shared_keys.is_some() && self.values_are_keys {
            let reason = "an attention with shared_keys takes that layer's values; set values_are_keys only there";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        let by_distance = self.position.distances().is_some();
        let is_own = !makes_fewer && self.d_encoder == self.d_model;
        if self.output_gate.is_some() && (by_distance || !is_own) {
            let reason = "output_gate requires self-attention with its own keys and values, without disentangled scores or a \
                          gated bias";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        if self.window == Some(0) {
            return Err(Error::InvalidConfig("the sliding window is 0".to_string()));
        }
        if let Some(chunk) = self.chunk {
            size("the length of chunks", chunk)?;
            let fits = self.visibility == Visibility::Causal && self.window.is_none();
            if !fits || self.d_encoder != self.d_model {
                let reason = "chunks require causal self-attention without a window";
                return Err(Error::InvalidConfig(reason.to_string()));
            }
        }
        if self.sinks && matches!(self.position, Position::Alibi(_)) {
            // In a softmax over the keys alone, an equal shift in all scores cancels out.
            let reason = "a sink with linear biases, which count from the last key, would depend on the length";
            return Err(Error::InvalidConfig(reason.to_string()));
        }
        match &self.latent {
            Some(latent) => latent.validate(self)?,
            None => self.position.validate(self)?,
        }
        probability("attention dropout", self.dropout)
    }
}
