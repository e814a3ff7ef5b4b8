//! Multi-head attention as data.

use serde::{Deserialize, Serialize};

use super::{NormConfig, Position, positive, probability};
use crate::{Error, Result};

/// Which keys a query may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Visibility {
    /// Every position (encoders).
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

    /// A bias on query, key and value, or not; on the output, or not.
    pub const fn new(inputs: bool, output: bool) -> Self {
        Self {
            query: inputs,
            key: inputs,
            value: inputs,
            output,
        }
    }
}

/// What a query or key norm runs over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryKeyNormSpan {
    /// Each head's width, all heads with one weight (Qwen 3, Gemma 3).
    Head,
    /// Each head's width, each head with a weight of its own (Cohere, StableLM).
    EachHead,
    /// All heads' width together (OLMo 2).
    Whole,
}

/// Norms of queries and keys before the rotation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct QueryKeyNorm {
    /// The norm; its width is set by `span`.
    pub norm: NormConfig,
    /// What it runs over.
    pub span: QueryKeyNormSpan,
}

/// Multi-head attention.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct AttentionConfig {
    /// Width of input and output.
    pub d_model: usize,
    /// Width of what keys and values are made from, `d_model` except in cross-attention.
    pub d_memory: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key/value heads; each serves `n_heads / n_kv_heads` query heads.
    pub n_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Factor on the scores before the softmax.
    pub scale: f64,
    /// Which keys a query may see.
    pub visibility: Visibility,
    /// How many keys a query sees: causal, the last `w` with its own; bidirectional, those at most
    /// `w` away (transformers' `sliding_window`).
    pub window: Option<usize>,
    /// Rotation or bias by position.
    pub position: Position,
    /// Norms of queries and keys.
    pub query_key_norm: Option<QueryKeyNorm>,
    /// Scores become `cap · tanh(score / cap)` (Gemma 2).
    pub soft_cap: Option<f64>,
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
        positive("d_model", d_model)?;
        positive("n_heads", n_heads)?;
        if !d_model.is_multiple_of(n_heads) {
            return Err(Error::InvalidConfig(format!(
                "{n_heads} heads do not divide the width {d_model}; choose a divisor, or set head_dim"
            )));
        }
        Ok(Self::with_head_dim(d_model, n_heads, d_model / n_heads))
    }

    /// As [`Self::new`], for heads whose widths do not add up to `d_model`.
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
            position: Position::None,
            query_key_norm: None,
            soft_cap: None,
            clip: None,
            bias: AttentionBias::ALL,
            dropout: 0.0,
        }
    }

    /// With keys and values made from vectors of width `d_memory` (cross-attention).
    pub fn with_memory(mut self, d_memory: usize) -> Self {
        self.d_memory = d_memory;
        self
    }

    /// With fewer key/value heads than query heads (grouped or multi-query attention).
    pub fn with_kv_heads(mut self, n_kv_heads: usize) -> Self {
        self.n_kv_heads = n_kv_heads;
        self
    }

    /// With the given visibility.
    pub fn with_visibility(mut self, visibility: Visibility) -> Self {
        self.visibility = visibility;
        self
    }

    /// Each query seeing itself and earlier positions only.
    pub fn causal(self) -> Self {
        self.with_visibility(Visibility::Causal)
    }

    /// With a sliding window, or none.
    pub fn with_window(mut self, window: Option<usize>) -> Self {
        self.window = window;
        self
    }

    /// With the given use of positions.
    pub fn with_position(mut self, position: Position) -> Self {
        self.position = position;
        self
    }

    /// With norms of queries and keys, or none.
    pub fn with_query_key_norm(mut self, norm: Option<QueryKeyNorm>) -> Self {
        self.query_key_norm = norm;
        self
    }

    /// With a soft cap on the scores, or none.
    pub fn with_soft_cap(mut self, cap: Option<f64>) -> Self {
        self.soft_cap = cap;
        self
    }

    /// With queries, keys and values clamped, or not.
    pub fn with_clip(mut self, clip: Option<f64>) -> Self {
        self.clip = clip;
        self
    }

    /// With biases on the given projections.
    pub fn with_bias(mut self, bias: AttentionBias) -> Self {
        self.bias = bias;
        self
    }

    /// With another factor on the scores.
    pub fn with_scale(mut self, scale: f64) -> Self {
        self.scale = scale;
        self
    }

    /// With dropout of probability `p` on the attention weights.
    pub fn with_dropout(mut self, p: f64) -> Self {
        self.dropout = p;
        self
    }

    /// Width of all query heads together.
    pub fn query_width(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn key_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Checks sizes, divisibility and probabilities.
    pub fn validate(&self) -> Result<()> {
        positive("d_model", self.d_model)?;
        positive("n_heads", self.n_heads)?;
        positive("n_kv_heads", self.n_kv_heads)?;
        positive("head_dim", self.head_dim)?;
        if !self.n_heads.is_multiple_of(self.n_kv_heads) {
            return Err(Error::InvalidConfig(format!(
                "{} key/value heads do not divide {} query heads",
                self.n_kv_heads, self.n_heads
            )));
        }
        if let Position::Rotary(rotary) = &self.position
            && (rotary.dim > self.head_dim || !rotary.dim.is_multiple_of(2))
        {
            return Err(Error::InvalidConfig(format!(
                "{} dimensions of each head turn; expected an even number up to head_dim {}",
                rotary.dim, self.head_dim
            )));
        }
        if let Some(clip) = self.clip
            && !(clip.is_finite() && clip > 0.0)
        {
            return Err(Error::InvalidConfig(format!(
                "queries, keys and values are clamped to ±{clip}; expected a positive number"
            )));
        }
        if self.window == Some(0) {
            return Err(Error::InvalidConfig("the sliding window is 0".to_string()));
        }
        probability("attention dropout", self.dropout)
    }
}
