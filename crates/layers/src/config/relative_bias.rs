//! The configuration of a learned relative position bias.

use serde::{Deserialize, Serialize};

use super::{AttentionConfig, Visibility, size};
use crate::error::{Error, Result};

/// The blocks in a stack that share a table for the learned relative position bias.
/// Set them in [`StackConfig::relative_bias_span`](crate::StackConfig::relative_bias_span).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RelativeBiasSpan {
    /// All blocks share one table (T5, MPNet).
    #[default]
    Stack,
    /// Each block has its own table (UMT5, Chung et al. 2023, <https://arxiv.org/abs/2304.09151>).
    Block,
}

/// The configuration of a learned relative position bias: a value for each head and bucket of distances (Raffel et
/// al. 2019, <https://arxiv.org/abs/1910.10683>).
/// Set it in [`StackConfig::relative_bias`](crate::StackConfig::relative_bias).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelativeBiasConfig {
    /// The number of buckets, the table's rows.
    pub n_buckets: usize,
    /// The distance at which the last bucket begins.
    pub max_distance: usize,
    /// The number of heads, the table's columns.
    pub n_heads: usize,
}

impl RelativeBiasConfig {
    /// Returns a table of `n_buckets` distances up to `max_distance` for `n_heads` heads.
    #[must_use]
    pub fn new(n_buckets: usize, max_distance: usize, n_heads: usize) -> Self {
        Self {
            n_buckets,
            max_distance,
            n_heads,
        }
    }

    /// Checks the buckets, and that there is a column for each of the attention's heads.
    pub(super) fn validate(&self, attention: &AttentionConfig) -> Result<()> {
        if self.n_heads != attention.n_heads {
            return Err(Error::InvalidConfig(format!(
                "the relative bias has {} heads, the attention {}",
                self.n_heads, attention.n_heads
            )));
        }
        self.validate_buckets(attention.visibility)
    }

    /// Checks that there are buckets for near and for far positions.
    pub(crate) fn validate_buckets(&self, visibility: Visibility) -> Result<()> {
        size("the number of buckets of the relative bias", self.n_buckets)?;
        let n_exact = self.n_exact(visibility);
        if n_exact == 0 || self.max_distance <= n_exact {
            return Err(Error::InvalidConfig(format!(
                "the relative bias has {} buckets up to the distance {}; expected at least one for a single distance, \
                 and a max_distance beyond the {n_exact} that have a bucket of their own",
                self.n_buckets, self.max_distance
            )));
        }
        Ok(())
    }

    /// Returns the bucket of a key `relative` positions after the query.
    pub(crate) fn bucket(&self, relative: i64, visibility: Visibility) -> usize {
        let (n_buckets, exact) = (self.n_one_sided(visibility), self.n_exact(visibility));
        let (first, distance) = match visibility {
            Visibility::Bidirectional if relative > 0 => (n_buckets, relative as usize),
            Visibility::Bidirectional => (0, relative.unsigned_abs() as usize),
            Visibility::Causal => (0, (-relative).max(0) as usize),
        };
        if distance < exact {
            return first + distance;
        }
        // The logarithm is taken in f32 and truncated, as in transformers, so that distances at the edges have the
        // same bucket.
        let log = (distance as f32 / exact as f32).ln();
        let span = (self.max_distance as f64 / exact as f64).ln() as f32;
        let beyond = (log / span * (n_buckets - exact) as f32) as usize;
        first + (exact + beyond).min(n_buckets - 1)
    }

    /// Returns the bucket count for one direction. Bidirectional attention has equally many for the other.
    pub(crate) fn n_one_sided(&self, visibility: Visibility) -> usize {
        match visibility {
            Visibility::Bidirectional => self.n_buckets / 2,
            Visibility::Causal => self.n_buckets,
        }
    }

    /// Returns the number of buckets with a single distance, in one direction.
    pub(crate) fn n_exact(&self, visibility: Visibility) -> usize {
        self.n_one_sided(visibility) / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buckets(visibility: Visibility, relative: &[i64]) -> Vec<usize> {
        let config = RelativeBiasConfig {
            n_buckets: 32,
            max_distance: 128,
            n_heads: 1,
        };
        let bucket = |&relative: &i64| config.bucket(relative, visibility);
        relative.iter().map(bucket).collect()
    }

    /// Compares with transformers 5.23's `T5Attention._relative_position_bucket`.
    #[test]
    fn buckets_are_those_of_t5() {
        let relative = [
            -200, -128, -127, -50, -16, -9, -8, -7, -1, 0, 1, 7, 8, 12, 33, 200,
        ];
        assert_eq!(buckets(Visibility::Bidirectional, &relative), BIDIRECTIONAL);
        assert_eq!(buckets(Visibility::Causal, &relative), CAUSAL);
    }

    const BIDIRECTIONAL: [usize; 16] = [15, 15, 15, 13, 10, 8, 8, 7, 1, 0, 17, 23, 24, 25, 28, 31];
    const CAUSAL: [usize; 16] = [31, 31, 31, 24, 16, 9, 8, 7, 1, 0, 0, 0, 0, 0, 0, 0];
}
