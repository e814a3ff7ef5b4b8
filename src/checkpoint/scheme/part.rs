//! The output features of a tensor on disk that belong to a role: all, a half, every other one, or a projection in a fused
//! tensor.

use std::ops::Range;

use serde::Deserialize;

use crate::config::{AttentionConfig, MixerConfig, MixerPart};

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

/// The order of a recurrent mixer's parts in the output features of one tensor.
/// Set it in [`Part::Mixer`](crate::checkpoint::scheme::Part::Mixer).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MixerLayout {
    /// All queries, all keys, all values (Qwen 3.5).
    QueryKeyValue,
    /// For each head, its query, key and value (MiniMax).
    QueryKeyValueByHead,
    /// For each key head, its query, key, values and gates (Qwen3-Next).
    QueryKeyValueGateByHead,
    /// All queries, keys, values, gates, strengths and decays (Lara Mini).
    QueryKeyValueGateWriteDecay,
    /// For each key head, the strengths and decays of its value heads (Qwen3-Next).
    WriteDecayByHead,
    /// The gate, values, keys, queries and steps (Mamba-2).
    GateValueKeyQueryDecay,
    /// Values, keys and queries (Mamba-2).
    ValueKeyQuery,
    /// Values and gates (Mamba).
    ValueGate,
    /// Columns for the steps, keys and queries (Mamba).
    DecayKeyQuery,
}

impl MixerLayout {
    /// Returns the parts in their order.
    fn order(self) -> &'static [MixerPart] {
        use MixerPart::{Decay, Gate, Key, Query, Value, Write};
        match self {
            Self::QueryKeyValue | Self::QueryKeyValueByHead => &[Query, Key, Value],
            Self::QueryKeyValueGateByHead => &[Query, Key, Value, Gate],
            Self::QueryKeyValueGateWriteDecay => &[Query, Key, Value, Gate, Write, Decay],
            Self::WriteDecayByHead => &[Write, Decay],
            Self::GateValueKeyQueryDecay => &[Gate, Value, Key, Query, Decay],
            Self::ValueKeyQuery => &[Value, Key, Query],
            Self::ValueGate => &[Value, Gate],
            Self::DecayKeyQuery => &[Decay, Key, Query],
        }
    }

    /// Returns how many groups have these parts, one after the other.
    fn groups(self, mixer: &MixerConfig) -> Option<usize> {
        match self {
            Self::QueryKeyValueByHead | Self::QueryKeyValueGateByHead | Self::WriteDecayByHead => {
                mixer.n_key_heads()
            }
            Self::QueryKeyValue
            | Self::QueryKeyValueGateWriteDecay
            | Self::GateValueKeyQueryDecay
            | Self::ValueKeyQuery
            | Self::ValueGate
            | Self::DecayKeyQuery => Some(1),
        }
    }

    /// Returns a part's output features.
    fn features(self, mixer: &MixerConfig, part: MixerPart) -> Option<Features> {
        let groups = self.groups(mixer)?;
        let widths = self
            .order()
            .iter()
            .map(|of| Some(mixer.part_width(*of)? / groups));
        let widths: Vec<usize> = widths.collect::<Option<_>>()?;
        let at = self.order().iter().position(|of| *of == part)?;
        let (start, width): (usize, usize) = (widths[..at].iter().sum(), widths[at]);
        let group: usize = widths.iter().sum();
        let range = |g: usize| g * group + start..g * group + start + width;
        Some(Features {
            ranges: (0..groups).map(range).collect(),
            total: groups * group,
        })
    }
}

/// The layers by which the place of a part is known.
#[derive(Clone, Copy)]
pub(crate) struct PartOwner<'a> {
    pub attention: Option<&'a AttentionConfig>,
    pub mixer: Option<&'a MixerConfig>,
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
    /// One half of each query head's features: the query, or the gate on the head's result (Qwen 3.5).
    HalfOfHeads(GateHalf),
    /// A part of a recurrent mixer.
    Mixer(MixerLayout, MixerPart),
}

impl Part {
    /// Returns the output features on disk for a role with `d_out` features, in the role's own order; `None` for all.
    pub(crate) fn features(self, owner: PartOwner, d_out: usize) -> Option<Features> {
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
            Self::HalfOfHeads(half) => {
                let n_heads = owner.attention?.n_heads;
                let width = d_out / n_heads.max(1);
                let first = match half {
                    GateHalf::First => 0,
                    GateHalf::Second => width,
                };
                let range = |head| 2 * head * width + first..2 * head * width + first + width;
                return Some(Features {
                    ranges: (0..n_heads).map(range).collect(),
                    total: 2 * d_out,
                });
            }
            Self::Mixer(layout, part) => return layout.features(owner.mixer?, part),
            Self::Fused(layout, projection) => (layout, projection),
        };
        let AttentionConfig {
            n_heads,
            n_kv_heads,
            head_dim,
            ..
        } = *owner.attention?;
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
    use crate::config::{GatedDeltaNetConfig, Mamba2Config};

    fn attention(config: &AttentionConfig) -> PartOwner<'_> {
        PartOwner {
            attention: Some(config),
            mixer: None,
        }
    }

    /// transformers' `Qwen3NextGatedDeltaNet.fix_query_key_value_ordering` and `GraniteMoeHybridMambaLayer`.
    #[test]
    fn the_parts_of_recurrent_mixers_lie_as_in_transformers() {
        let delta = GatedDeltaNetConfig::new(8, [2, 4], [3, 5]).into();
        let mamba = Mamba2Config::new(8, [4, 3], 5).with_groups(2).into();
        // The starts and ends of a part in each group, and all features.
        let ranges = |mixer: &MixerConfig, layout, part| {
            let owner = PartOwner {
                attention: None,
                mixer: Some(mixer),
            };
            let features = Part::Mixer(layout, part).features(owner, 0).unwrap();
            let ranges = features.ranges.iter().map(|range| [range.start, range.end]);
            (ranges.collect::<Vec<_>>(), features.total)
        };
        use MixerLayout::*;
        let found = ranges(&delta, QueryKeyValueGateByHead, MixerPart::Value);
        assert_eq!(found, (vec![[6, 16], [32, 42]], 52));
        let found = ranges(&delta, WriteDecayByHead, MixerPart::Decay);
        assert_eq!(found, (vec![[2, 4], [6, 8]], 8));
        let found = ranges(&delta, QueryKeyValue, MixerPart::Value);
        assert_eq!(found, (vec![[12, 32]], 32));
        let found = ranges(&delta, QueryKeyValueGateWriteDecay, MixerPart::Write);
        assert_eq!(found, (vec![[52, 56]], 60));
        let found = ranges(&mamba, GateValueKeyQueryDecay, MixerPart::Query);
        assert_eq!(found, (vec![[34, 44]], 48));
        let found = ranges(&mamba, ValueKeyQuery, MixerPart::Key);
        assert_eq!(found, (vec![[12, 22]], 32));
    }

    /// transformers' `Qwen3_5Attention`: `q_proj(x).view(.., heads, 2 * head_dim).chunk(2, -1)`.
    #[test]
    fn halves_of_heads_alternate() {
        let config = AttentionConfig::with_head_dim(8, 3, 2);
        let features = Part::HalfOfHeads(GateHalf::Second).features(attention(&config), 6);
        let features = features.unwrap();
        assert_eq!(
            (features.ranges, features.total),
            (vec![2..4, 6..8, 10..12], 12)
        );
    }

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
                let features = Part::Fused(layout, projection).features(attention(&config), 0);
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
        let features = |half| {
            Part::Alternate(half)
                .features(attention(&config), 3)
                .unwrap()
        };
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
            let features = Part::Fused(layout, projection).features(attention(&config), 0);
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
