//! The configuration of disentangled attention.

use serde::{Deserialize, Serialize};

use super::position::{Distances, of_plain_heads};
use super::{AttentionConfig, NormConfig, probability, size};
use crate::error::{Error, Result};

/// Disentangled attention (He et al. 2020, <https://arxiv.org/abs/2006.03654>): scores are a sum over content and
/// relative position, `scale · (q·k + q·P_k[row] + k·P_q[row])`, with a row for `query - key`. All blocks in a stack
/// share a table of relative embeddings ([`RelativeEmbeddingsConfig`]). Each block projects it to the positions
/// `P_k` and `P_q`.
///
/// transformers' `DisentangledSelfAttention`:
/// <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/models/deberta_v2/modeling_deberta_v2.py>
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct DisentangledConfig {
    /// Half the table's row count: the number of distances, or buckets of distances, with a row in each direction.
    /// Larger distances share the last row.
    pub span: usize,
    /// The distance at which the last logarithmic bucket begins: with it, distances above half the span share
    /// buckets (`max_relative_positions` together with `position_buckets`).
    pub max_distance: Option<usize>,
    /// Adds the query-to-position term `q·P_k`, transformers' `c2p`.
    pub content_to_position: bool,
    /// Adds the key-to-position term `k·P_q`, transformers' `p2c`.
    pub position_to_content: bool,
    /// The projections for relative embeddings.
    pub projections: PositionProjections,
    /// The dropout probability for relative embeddings, drawn in each block.
    pub dropout: f64,
}

/// The projections from relative embeddings to positions.
/// Set them in [`DisentangledConfig::projections`](crate::config::DisentangledConfig::projections).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PositionProjections {
    /// The attention's own key and query projections (DeBERTa v3).
    Shared,
    /// Separate projections.
    Own {
        /// The projection to `P_k` has a bias.
        key_bias: bool,
        /// The projection to `P_q` has a bias.
        query_bias: bool,
    },
}

impl DisentangledConfig {
    /// Returns a configuration with both terms, a row for each distance below `span`, the attention's own
    /// projections and no dropout.
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

    /// Returns the table's row for `distance = query - key`, within the span: transformers'
    /// `make_log_bucket_position`.
    pub fn row(&self, distance: i64) -> usize {
        let span = self.span as i64;
        let bucket = match self.max_distance {
            Some(max) => bucket(distance, span / 2, max),
            None => distance,
        };
        bucket.saturating_add(span).clamp(0, 2 * span - 1) as usize
    }

    /// Checks the settings, and that the attention is bidirectional self-attention.
    pub(super) fn validate(&self, attention: &AttentionConfig) -> Result<()> {
        let failed = |reason: String| Err(Error::InvalidConfig(reason));
        size("the span of relative embeddings", self.span)?;
        probability("the dropout of relative embeddings", self.dropout)?;
        if let Some(max) = self.max_distance {
            size("the largest distance with a separate bucket", max)?;
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
                "disentangled attention without position terms; use Position::None".to_string(),
            );
        }
        of_plain_heads("disentangled scoring", attention)
    }
}

/// Returns a distance up to `exact` unchanged, and the logarithmic bucket for a larger one.
fn bucket(distance: i64, exact: i64, max: usize) -> i64 {
    let far = distance.unsigned_abs();
    if far <= exact as u64 {
        return distance;
    }
    // In f32 as in transformers, for the same bucket at the edges.
    let log = (far as f32 / exact as f32).ln();
    let most = ((max as f64 - 1.0) / exact as f64) as f32;
    let beyond = (log / most.ln() * (exact - 1) as f32).ceil() as i64;
    (beyond + exact) * distance.signum()
}

/// The configuration of the table of relative embeddings, which all blocks in a stack share.
/// Set it in [`StackConfig::relative_embeddings`](crate::StackConfig::relative_embeddings).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RelativeEmbeddingsConfig {
    /// The table's row count: twice the span in [`DisentangledConfig`], or the buckets of
    /// [`Position::GatedBias`](crate::config::Position::GatedBias).
    pub n_rows: usize,
    /// The norm over each row (`norm_rel_ebd`).
    pub norm: Option<NormConfig>,
}

impl RelativeEmbeddingsConfig {
    /// Returns a table of `n_rows` distances, with or without a norm.
    #[must_use]
    pub fn new(n_rows: usize, norm: Option<NormConfig>) -> Self {
        Self { n_rows, norm }
    }

    /// Checks the norm, and that the blocks read as many rows.
    pub(super) fn validate(&self, read: &Distances, d_model: usize) -> Result<()> {
        let width = read.width(d_model);
        if let Some(norm) = &self.norm {
            norm.validate()?;
            if norm.d_model != width {
                return Err(Error::InvalidConfig(format!(
                    "the norm for relative embeddings has width {}, the rows {width}",
                    norm.d_model
                )));
            }
        }
        match self.n_rows == read.n_rows() {
            true => Ok(()),
            false => Err(Error::InvalidConfig(format!(
                "relative embeddings of {} rows, but blocks read {} (twice the span, or the number of buckets)",
                self.n_rows,
                read.n_rows()
            ))),
        }
    }
}
