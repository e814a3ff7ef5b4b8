//! The output features of a tensor on disk that belong to a role: all, a half, every other one, or a projection in a fused
//! tensor.

use std::ops::Range;

use serde::Deserialize;

use crate::config::AttentionConfig;

/// One of the three projections in a fused tensor. Set it in [`Part::Fused`](crate::checkpoint::scheme::Part::Fused).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Projection {
    /// Query.
    Query,
    /// Key.
    Key,
    /// Value.
    Value,
}

/// The arrangement of query, key and value in the output features of one tensor.
/// Pass it to [`Rule::fused_attention`](crate::checkpoint::scheme::Rule::fused_attention).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FusedLayout {
    /// First the whole query, then the whole key, then the whole value (GPT-2, Phi-3, ModernBERT).
    Blocks,
    /// Query, key and value for each head in turn (GPT-NeoX, BLOOM).
    PerHead,
    /// For each key/value head, its query heads, then its key and its value (Falcon).
    PerGroup,
    /// For each quarter of the heads, its queries, values and keys (CodeGen).
    FourShards,
}

/// One half of a tensor's output features. Pass it to [`Rule::fused_gate`](crate::checkpoint::scheme::Rule::fused_gate).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GateHalf {
    /// The first half.
    First,
    /// The second half.
    Second,
}

/// The output features of a tensor on disk that belong to a role.
/// Set them in [`Rule::part`](crate::checkpoint::scheme::Rule::part).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// All output features.
    #[default]
    Whole,
    /// One projection in a fused query/key/value tensor.
    Fused(FusedLayout, Projection),
    /// One half: the gate or the `up` projection in a fused pair.
    Half(GateHalf),
    /// Every other output feature, starting at the first or the second: the gate or the `up` projection in an interleaved
    /// pair (gpt-oss).
    Alternate(GateHalf),
}

impl Part {
    /// Returns the output features on disk for a role with `d_out` features, in the role's own order; `None` for all.
    pub(crate) fn features(self, config: &AttentionConfig, d_out: usize) -> Option<Features> {
        let (layout, projection) = match self {
            Self::Whole => return None,
            Self::Half(half) => {
                let start = match half {
                    GateHalf::First => 0,
                    GateHalf::Second => d_out,
                };
                return Some(Features {
                    ranges: std::iter::once(start..start + d_out).collect(),
                    total: 2 * d_out,
                });
            }
            Self::Alternate(half) => {
                let first = match half {
                    GateHalf::First => 0,
                    GateHalf::Second => 1,
                };
                let feature = |i| first + 2 * i..first + 2 * i + 1;
                return Some(Features {
                    ranges: (0..d_out).map(feature).collect(),
                    total: 2 * d_out,
                });
            }
            Self::Fused(layout, projection) => (layout, projection),
        };
        let AttentionConfig {
            n_heads,
            n_kv_heads,
            head_dim,
            ..
        } = *config;
        // A layout is a number of groups, each with runs of query heads, key heads and value heads.
        use Projection::{Key, Query, Value};
        let (groups, order) = match layout {
            FusedLayout::Blocks => (1, [Query, Key, Value]),
            FusedLayout::PerHead => (n_heads, [Query, Key, Value]),
            FusedLayout::PerGroup => (n_kv_heads, [Query, Key, Value]),
            FusedLayout::FourShards => (4, [Query, Value, Key]),
        };
        let heads = |projection| match projection {
            Query => n_heads / groups,
            Key | Value => n_kv_heads / groups,
        };
        let group: usize = order.into_iter().map(heads).sum();
        let before = order.into_iter().take_while(|&p| p != projection);
        let start: usize = before.map(heads).sum();
        let range = |g| {
            let first = (g * group + start) * head_dim;
            first..first + heads(projection) * head_dim
        };
        Some(Features {
            ranges: (0..groups).map(range).collect(),
            total: groups * group * head_dim,
        })
    }
}

/// The output features of a tensor on disk that belong to one role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Features {
    /// In the role's own order.
    pub ranges: Vec<Range<usize>>,
    /// The tensor's total number of output features.
    pub total: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fused_layout_covers_every_feature_once() {
        let config = AttentionConfig::with_head_dim(12, 6, 2).with_kv_heads(3);
        for layout in [FusedLayout::Blocks, FusedLayout::PerGroup] {
            let mut seen = Vec::new();
            for (projection, heads) in [
                (Projection::Query, 6),
                (Projection::Key, 3),
                (Projection::Value, 3),
            ] {
                let features = Part::Fused(layout, projection).features(&config, 0);
                let features: Vec<usize> = features
                    .into_iter()
                    .flat_map(|f| f.ranges)
                    .flatten()
                    .collect();
                assert_eq!(features.len(), heads * 2, "{layout:?} {projection:?}");
                seen.extend(features);
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..24).collect::<Vec<_>>(), "{layout:?}");
        }
    }

    /// transformers' `GptOssExperts`: `gate, up = gate_up[..., ::2], gate_up[..., 1::2]`.
    #[test]
    fn alternate_features_are_every_other_one() {
        let config = AttentionConfig::with_head_dim(8, 2, 4);
        let features = |half| Part::Alternate(half).features(&config, 3).unwrap();
        let ranges = |half| {
            features(half)
                .ranges
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
        };
        assert_eq!(ranges(GateHalf::First), [0, 2, 4]);
        assert_eq!(ranges(GateHalf::Second), [1, 3, 5]);
        assert_eq!(features(GateHalf::First).total, 6);
    }

    /// transformers: GPT-NeoX views the output as (heads, 3, head_dim), Falcon-40b as (kv_heads, heads / kv_heads + 2,
    /// head_dim).
    #[test]
    fn grouped_layouts_are_those_of_transformers() {
        let features = |layout, projection, n_heads, n_kv| {
            let config = AttentionConfig::with_head_dim(8, n_heads, 2).with_kv_heads(n_kv);
            let features = Part::Fused(layout, projection).features(&config, 0);
            features.map(|features| features.ranges)
        };
        assert_eq!(
            features(FusedLayout::PerHead, Projection::Key, 2, 2),
            Some(vec![2..4, 8..10])
        );
        assert_eq!(
            features(FusedLayout::PerGroup, Projection::Query, 4, 2),
            Some(vec![0..4, 8..12])
        );
        assert_eq!(
            features(FusedLayout::PerGroup, Projection::Value, 4, 2),
            Some(vec![6..8, 14..16])
        );
    }
}
