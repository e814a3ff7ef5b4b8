//! The configuration of disentangled attention.

use serde::{Deserialize, Serialize};

use super::{AttentionConfig, NormConfig, Visibility, probability, size};
use crate::error::{Error, Result};

/// Disentangled attention (He et al. 2020, <https://arxiv.org/abs/2006.03654>): besides the contents of query and key, the
/// content of either meets an embedding of their distance, `scale · (q·k + q·P_k[row] + k·P_q[row])`, with a row for
/// `query - key`. All blocks of a stack share the table of these embeddings ([`RelativeEmbeddingsConfig`]); each projects it to
/// positions `P_k` and `P_q`.
///
/// transformers' `DisentangledSelfAttention`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/deberta_v2/modeling_deberta_v2.py>
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct DisentangledConfig {
    /// Half the rows of the table: how many distances of either direction have a row, or how many buckets of them. Those
    /// further away share the last.
    pub span: usize,
    /// Where given, distances beyond half the span share buckets by their logarithm, and this is the first of the last
    /// one's (`max_relative_positions` beside `position_buckets`).
    pub max_distance: Option<usize>,
    /// Whether the content of queries meets positions, `q·P_k`: transformers' `c2p`.
    pub content_to_position: bool,
    /// Whether the content of keys meets positions, `k·P_q`: transformers' `p2c`.
    pub position_to_content: bool,
    /// What projects the embeddings of distances.
    pub projections: PositionProjections,
    /// Dropout probability of these embeddings, drawn in each block.
    pub dropout: f64,
}

/// What projects the embeddings of distances to positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionProjections {
    /// The attention's own projections of keys and queries (DeBERTa v3).
    Shared,
    /// Projections of their own.
    Own {
        /// Whether that of `P_k` has a bias.
        key_bias: bool,
        /// Whether that of `P_q` has one.
        query_bias: bool,
    },
}

impl DisentangledConfig {
    /// Both terms, with a row for each distance below `span`, projections shared with the content and no dropout.
    pub fn new(span: usize) -> Self {
        Self {
            span,
            max_distance: None,
            content_to_position: true,
            position_to_content: true,
            projections: PositionProjections::Shared,
            dropout: 0.0,
        }
    }

    /// The row of the table for a query so many positions behind a key: transformers' `make_log_bucket_position`, within the
    /// span.
    pub fn row(&self, distance: i64) -> usize {
        let span = self.span as i64;
        let bucket = match self.max_distance {
            Some(max) => bucket(distance, span / 2, max),
            None => distance,
        };
        bucket.saturating_add(span).clamp(0, 2 * span - 1) as usize
    }

    /// Checks the settings, and that the attention is one of a sequence to all of itself.
    pub(super) fn validate(&self, attention: &AttentionConfig) -> Result<()> {
        let failed = |reason: String| Err(Error::InvalidConfig(reason));
        size("the span of relative embeddings", self.span)?;
        probability("the dropout of relative embeddings", self.dropout)?;
        if let Some(max) = self.max_distance {
            size("the largest distance with a bucket of its own", max)?;
            if self.span < 2 || max < self.span / 2 + 2 {
                return failed(format!(
                    "relative embeddings of {} buckets up to the distance {max}; expected 2 buckets or more, and a distance of \
                     at least half as many and 2",
                    self.span
                ));
            }
        }
        if !(self.content_to_position || self.position_to_content) {
            return failed(
                "disentangled attention without a term of positions; use Position::None"
                    .to_string(),
            );
        }
        let is_plain = attention.visibility == Visibility::Bidirectional
            && attention.n_kv_heads == attention.n_heads
            && attention.d_memory == attention.d_model
            && attention.soft_cap.is_none();
        match is_plain {
            true => Ok(()),
            false => failed(
                "disentangled attention is bidirectional self-attention with as many key heads as query heads and no \
                 soft cap; expected a configuration of that kind"
                    .to_string(),
            ),
        }
    }
}

/// Distances up to `exact` as they are, and those beyond by their logarithm.
fn bucket(distance: i64, exact: i64, max: usize) -> i64 {
    let far = distance.unsigned_abs();
    if far <= exact as u64 {
        return distance;
    }
    // In f32, as there, for the same bucket at the edges.
    let log = (far as f32 / exact as f32).ln();
    let most = ((max as f64 - 1.0) / exact as f64) as f32;
    let beyond = (log / most.ln() * (exact - 1) as f32).ceil() as i64;
    (beyond + exact) * distance.signum()
}

/// The configuration of the table of embeddings of distances that the blocks of a stack share.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelativeEmbeddingsConfig {
    /// Rows of the table: twice the span of [`DisentangledConfig`].
    pub n_rows: usize,
    /// The norm of each row, if any (`norm_rel_ebd`).
    pub norm: Option<NormConfig>,
}

impl RelativeEmbeddingsConfig {
    /// Checks the norm, and that a block reads as many rows.
    pub(super) fn validate(&self, disentangled: &DisentangledConfig, d_model: usize) -> Result<()> {
        if let Some(norm) = &self.norm {
            norm.validate()?;
            if norm.d_model != d_model {
                return Err(Error::InvalidConfig(format!(
                    "the norm of relative embeddings is of width {}, the blocks of {d_model}",
                    norm.d_model
                )));
            }
        }
        match self.n_rows == 2 * disentangled.span {
            true => Ok(()),
            false => Err(Error::InvalidConfig(format!(
                "relative embeddings of {} rows for a span of {}; expected twice as many rows",
                self.n_rows, disentangled.span
            ))),
        }
    }
}
