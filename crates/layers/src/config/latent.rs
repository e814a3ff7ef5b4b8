//! The configuration of multi-head latent attention.

use serde::{Deserialize, Serialize};

use super::{AttentionConfig, NormConfig, Position, size};
use crate::error::{Error, Result};

/// Multi-head latent attention (DeepSeek-AI 2024, DeepSeek-V2, <https://arxiv.org/abs/2405.04434>). `[ , ]`
/// concatenates vectors, and `R` is the rotary embedding:
///
/// ```text
/// [c', k']   = latent(x)            c = norm(c')      a cache stores c and R(k'), for any number of heads
/// [kₕ, vₕ]   = key_value(c)         for each head h
/// [qₕ, q'ₕ]  = query(x), or query(norm(query_latent(x)))
/// outputₕ    = softmax(scale · [qₕ, R(q'ₕ)]·[kₕ, R(k')]ᵀ)·vₕ
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatentConfig {
    /// The width of the query latent. `None` projects the input to queries directly.
    pub query_rank: Option<usize>,
    /// The width of the key/value latent `c`.
    pub rank: usize,
    /// The number of rotated dimensions in a query and a key, the last ones in the head. All heads share the key's,
    /// `k'`.
    pub rotary_dim: usize,
    /// The width of a head's value.
    pub value_dim: usize,
    /// The norm for both latents. The latents set its width.
    pub norm: NormConfig,
}

impl LatentConfig {
    /// Returns the ranks and widths of latent attention.
    #[must_use]
    pub fn new(
        query_rank: Option<usize>,
        rank: usize,
        rotary_dim: usize,
        value_dim: usize,
        norm: NormConfig,
    ) -> Self {
        Self {
            query_rank,
            rank,
            rotary_dim,
            value_dim,
            norm,
        }
    }

    /// Returns the number of elements that a cache stores per position.
    pub fn kept_width(&self) -> usize {
        self.rank + self.rotary_dim
    }

    /// Returns the norm for a latent with this width.
    pub(crate) fn norm_of(&self, d_model: usize) -> NormConfig {
        NormConfig {
            d_model,
            ..self.norm
        }
    }

    /// Checks the settings against the attention's.
    pub(super) fn validate(&self, of: &AttentionConfig) -> Result<()> {
        let fail = |reason: String| Err(Error::InvalidConfig(format!("latent attention {reason}")));
        size("the rank of keys and values", self.rank)?;
        size("the rank of queries", self.query_rank.unwrap_or(1))?;
        size("the number of rotated dimensions", self.rotary_dim)?;
        size("the width of a value", self.value_dim)?;
        size(
            "the width of all values",
            of.n_heads.saturating_mul(self.value_dim),
        )?;
        self.norm.validate_eps()?;
        if self.rotary_dim >= of.head_dim {
            return fail(format!(
                "rotates {} of a head's {} dimensions; expected fewer",
                self.rotary_dim, of.head_dim
            ));
        }
        if of.n_kv_heads != of.n_heads || of.d_encoder != of.d_model {
            return fail(format!(
                "computes the keys for all {} heads from the input's {} columns; found {} key/value heads and {} columns",
                of.n_heads, of.d_model, of.n_kv_heads, of.d_encoder
            ));
        }
        if of.query_key_norm.is_some() || of.clip.is_some() {
            let reason =
                "has norms over its latents; expected no norm or clip for queries and keys";
            return fail(reason.into());
        }
        match &of.position {
            Position::None => Ok(()),
            Position::Rotary(rotary) if rotary.dim == self.rotary_dim => of.position.validate(of),
            other => fail(format!(
                "rotates {} dimensions or none; found {other:?}",
                self.rotary_dim
            )),
        }
    }
}
