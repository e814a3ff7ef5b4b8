//! The output features of a tensor on disk that belong to a role: all, a half, every other one, a half of each head, or a
//! projection in a fused tensor.

use std::ops::Range;

use serde::Deserialize;

use crate::config::{AttentionConfig, GroupWidths};

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

impl FusedLayout {
    /// Returns the features of a projection.
    fn features(self, projection: Projection, config: &AttentionConfig) -> Features {
        let AttentionConfig {
            n_heads,
            n_kv_heads,
            head_dim,
            ..
        } = *config;
        // A layout is a number of groups, each with runs of query heads, key heads and value heads.
        use Projection::{Key, Query, Value};
        let (groups, order) = match self {
            Self::Blocks => (1, [Query, Key, Value]),
            Self::PerHead => (n_heads, [Query, Key, Value]),
            Self::PerGroup => (n_kv_heads, [Query, Key, Value]),
            Self::FourShards => (4, [Query, Value, Key]),
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
        Features {
            ranges: (0..groups).map(range).collect(),
            total: groups * group * head_dim,
        }
    }
}

/// One of the projections of a recurrent mixer in a fused tensor. Set it in
/// [`Part::Recurrent`](crate::checkpoint::scheme::Part::Recurrent).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RecurrentProjection {
    /// Query.
    Query,
    /// Key.
    Key,
    /// Value.
    Value,
    /// The gate on the result.
    Gate,
    /// The strength of a write to the state.
    Write,
    /// The decay of the state.
    Decay,
}

/// The arrangement of a recurrent mixer's projections, or of its convolutions, in the output features of one tensor.
/// Pass it to [`Rule::recurrent`](crate::checkpoint::scheme::Rule::recurrent).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RecurrentLayout {
    /// First all queries, then all keys, then all values (Qwen 3.5).
    Blocks,
    /// For each key head, its query, its key, the values of its value heads, and their gates (Qwen3-Next).
    PerKeyHead,
    /// For each key head, the writes of its value heads, and their decays (Qwen3-Next).
    StepsPerKeyHead,
}

impl RecurrentLayout {
    /// Returns the projections in the order of one group.
    fn order(self) -> &'static [RecurrentProjection] {
        use RecurrentProjection::{Decay, Gate, Key, Query, Value, Write};
        match self {
            Self::Blocks => &[Query, Key, Value],
            Self::PerKeyHead => &[Query, Key, Value, Gate],
            Self::StepsPerKeyHead => &[Write, Decay],
        }
    }

    /// Returns the features of a projection, whose widths for one key head are `widths`; none if the layout lacks it.
    fn features(self, projection: RecurrentProjection, widths: GroupWidths) -> Features {
        let (n_groups, heads) = match self {
            Self::Blocks => (1, widths.n_groups),
            Self::PerKeyHead | Self::StepsPerKeyHead => (widths.n_groups, 1),
        };
        let width = |projection: &RecurrentProjection| {
            heads
                * match projection {
                    RecurrentProjection::Query => widths.query,
                    RecurrentProjection::Key => widths.key,
                    RecurrentProjection::Value => widths.value,
                    RecurrentProjection::Gate => widths.gate,
                    RecurrentProjection::Write => widths.write,
                    RecurrentProjection::Decay => widths.decay,
                }
        };
        let order = self.order();
        let group: usize = order.iter().map(width).sum();
        let Some(index) = order.iter().position(|of| *of == projection) else {
            return Features {
                ranges: vec![],
                total: n_groups * group,
            };
        };
        let start: usize = order[..index].iter().map(width).sum();
        let first = |g| g * group + start;
        Features {
            ranges: (0..n_groups)
                .map(|g| first(g)..first(g) + width(&projection))
                .collect(),
            total: n_groups * group,
        }
    }
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
    /// One half of each head's output features: the query or the gate of an attention whose query projection holds both for
    /// each head in turn (Qwen3-Next).
    HalfOfHead(GateHalf),
    /// One projection, or one convolution, in a fused tensor of a recurrent mixer.
    Recurrent(RecurrentLayout, RecurrentProjection),
}

/// The layer whose projections a fused tensor holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FusedLayer<'a> {
    /// Attention.
    Attention(&'a AttentionConfig),
    /// A recurrent mixer, by the widths of its projections.
    Recurrent(GroupWidths),
}

impl Part {
    /// Returns the output features on disk for a role with `d_out` features, in the role's own order; `None` for all, and for a
    /// projection of a layer that is not `layer`.
    pub(crate) fn features(self, layer: Option<FusedLayer>, d_out: usize) -> Option<Features> {
        match (self, layer) {
            (Self::Half(half), _) => Some(halves(1, half, d_out)),
            (Self::Alternate(half), _) => Some(halves(d_out, half, d_out)),
            (Self::HalfOfHead(half), Some(FusedLayer::Attention(attention))) => {
                Some(halves(attention.n_heads, half, d_out))
            }
            (Self::Fused(layout, projection), Some(FusedLayer::Attention(attention))) => {
                Some(layout.features(projection, attention))
            }
            (Self::Recurrent(layout, projection), Some(FusedLayer::Recurrent(widths))) => {
                Some(layout.features(projection, widths))
            }
            (Self::Whole, _) | (Self::Fused(..) | Self::HalfOfHead(_) | Self::Recurrent(..), _) => {
                None
            }
        }
    }
}

/// Returns one half of each of `n_groups` groups of features; the role has `d_out`.
fn halves(n_groups: usize, half: GateHalf, d_out: usize) -> Features {
    let width = d_out / n_groups.max(1);
    let start = match half {
        GateHalf::First => 0,
        GateHalf::Second => width,
    };
    let range = |g| 2 * g * width + start..2 * g * width + start + width;
    Features {
        ranges: (0..n_groups).map(range).collect(),
        total: 2 * d_out,
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
                let features = Part::Fused(layout, projection)
                    .features(Some(FusedLayer::Attention(&config)), 0);
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
        let features = |half| Part::Alternate(half).features(None, 3).unwrap();
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
            let features =
                Part::Fused(layout, projection).features(Some(FusedLayer::Attention(&config)), 0);
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

    /// Returns the features of one key head with `[r, key_dim, value_dim]` = `[2, 3, 5]`, of two.
    fn recurrent(layout: RecurrentLayout, projection: RecurrentProjection) -> Vec<Range<usize>> {
        let widths = GroupWidths {
            n_groups: 2,
            query: 3,
            key: 3,
            value: 10,
            gate: 10,
            write: 2,
            decay: 2,
        };
        let part = Part::Recurrent(layout, projection);
        let features = part.features(Some(FusedLayer::Recurrent(widths)), 0);
        features.unwrap().ranges
    }

    /// transformers' `Qwen3NextGatedDeltaNet.fix_query_key_value_ordering`, and the split of `in_proj_qkv` in
    /// `Qwen3_5GatedDeltaNet`.
    #[test]
    fn recurrent_layouts_are_those_of_transformers() {
        use RecurrentLayout::{Blocks, PerKeyHead, StepsPerKeyHead};
        use RecurrentProjection::{Decay, Gate, Key, Query, Value, Write};
        assert_eq!(recurrent(PerKeyHead, Query), [0..3, 26..29]);
        assert_eq!(recurrent(PerKeyHead, Key), [3..6, 29..32]);
        assert_eq!(recurrent(PerKeyHead, Value), [6..16, 32..42]);
        assert_eq!(recurrent(PerKeyHead, Gate), [16..26, 42..52]);
        assert_eq!(recurrent(StepsPerKeyHead, Write), [0..2, 4..6]);
        assert_eq!(recurrent(StepsPerKeyHead, Decay), [2..4, 6..8]);
        assert_eq!(recurrent(Blocks, Query), [Range { start: 0, end: 6 }]);
        assert_eq!(recurrent(Blocks, Key), [Range { start: 6, end: 12 }]);
        assert_eq!(recurrent(Blocks, Value), [Range { start: 12, end: 32 }]);
        assert!(recurrent(Blocks, Gate).is_empty());
    }

    /// transformers' `Qwen3NextAttention`: `chunk(q_proj(x).view(.., head_dim * 2), 2, dim=-1)`.
    #[test]
    fn queries_and_gates_take_turns_by_head() {
        let config = AttentionConfig::with_head_dim(12, 2, 3);
        let ranges = |half| {
            let part = Part::HalfOfHead(half);
            let features = part.features(Some(FusedLayer::Attention(&config)), 6);
            features.unwrap().ranges
        };
        assert_eq!(ranges(GateHalf::First), [0..3, 6..9]);
        assert_eq!(ranges(GateHalf::Second), [3..6, 9..12]);
    }
}
