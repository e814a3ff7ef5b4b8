//! A checkpoint family as data: which tensor on disk plays which role, and how it lies there.
//!
//! A [`Family`] is a table of rules. Each rule ties a role in this crate's naming
//! (`attention.query`) to names on disk, with an orientation and, where several roles share one
//! tensor, the part of it. Weight and bias of a role share one rule, so they cannot be permuted
//! differently; a rule can be read backwards, so gradients and saved weights find their way home.

use std::{fmt, ops::Range};

use serde::Deserialize;

use crate::{
    Result,
    checkpoint::{config_json::ConfigJson, fresh},
    config::{AttentionConfig, Initialisation, StackConfig},
};

pub(crate) use crate::config::matches;

/// Which way a weight matrix lies on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Orientation {
    /// `[d_out, d_in]`, as `torch.nn.Linear`: `y = x·Wᵀ`.
    #[default]
    OutIn,
    /// `[d_in, d_out]`, as transformers' `Conv1D` and NumPy code: `y = x·W`.
    InOut,
}

/// One of the three projections that a fused tensor holds.
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

/// How query, key and value share one tensor's output features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FusedLayout {
    /// All of the query, then all of the key, then all of the value (GPT-2, Phi-3, ModernBERT).
    Blocks,
    /// For every head its query, key and value (GPT-NeoX, BLOOM).
    PerHead,
    /// For every key/value head the queries it serves, its key and its value (Falcon).
    PerGroup,
    /// For every quarter of the heads its queries, its values and its keys (CodeGen).
    FourShards,
}

/// One half of a tensor's output features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Half {
    /// The first.
    First,
    /// The second.
    Second,
}

/// Which output features of a tensor on disk belong to a role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// All.
    #[default]
    Whole,
    /// One projection out of a fused query/key/value tensor.
    Fused(FusedLayout, Projection),
    /// One of two equal parts: a gate or an `up` projection of a fused pair.
    Half(Half),
}

impl Part {
    /// The output features on disk of a role with `d_out` of them, in the role's own order; `None` for all.
    pub(crate) fn features(self, config: &AttentionConfig, d_out: usize) -> Option<Features> {
        let (layout, projection) = match self {
            Self::Whole => return None,
            Self::Half(half) => {
                let start = match half {
                    Half::First => 0,
                    Half::Second => d_out,
                };
                return Some(Features {
                    ranges: std::iter::once(start..start + d_out).collect(),
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
        // A layout is a number of groups, each a run of query heads, of key heads and of value heads.
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
    /// How many the tensor on disk has in all.
    pub total: usize,
}

/// Whether a tensor on disk is one of several of its kind, or holds them all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stacking {
    /// Each has a tensor of its own.
    #[default]
    Apart,
    /// One tensor holds all, one behind the other along a first dimension of its own.
    Stacked,
}

/// Ties one role to its names on disk.
///
/// `{e}` in a role and in its names stands for a number: an expert or a head.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The role: `attention.query`, `feed_forward_norm` ... inside a block, or `final_norm`.
    pub role: String,
    /// Names of the weight, in the order in which they are tried.
    pub weight: Vec<String>,
    /// Names of the bias, in the order in which they are tried.
    #[serde(default)]
    pub bias: Vec<String>,
    /// Which way the weight lies.
    #[serde(default)]
    pub orientation: Orientation,
    /// Which part of the tensor it is.
    #[serde(default)]
    pub part: Part,
    /// Whether the numbered roles share one tensor.
    #[serde(default)]
    pub stacking: Stacking,
}

impl Rule {
    /// A linear layer at one of `stems`, as `nn.Linear` stores it.
    pub fn linear(role: &str, stems: &[&str]) -> Self {
        Self {
            role: role.to_string(),
            weight: with_endings(stems, &["weight"]),
            bias: with_endings(stems, &["bias"]),
            orientation: Orientation::OutIn,
            part: Part::Whole,
            stacking: Stacking::Apart,
        }
    }

    /// A parameter at one of `names`, given whole; its bias at one of `bias`.
    pub fn named(role: &str, names: &[&str], bias: &[&str]) -> Self {
        Self {
            weight: strings(names),
            bias: strings(bias),
            ..Self::linear(role, &[])
        }
    }

    /// A linear layer at one of `stems`, as transformers' `Conv1D` stores it.
    pub fn conv1d(role: &str, stems: &[&str]) -> Self {
        Self {
            orientation: Orientation::InOut,
            ..Self::linear(role, stems)
        }
    }

    /// A norm at one of `stems`, with PyTorch's or TensorFlow's names for its parameters.
    pub fn norm(role: &str, stems: &[&str]) -> Self {
        Self {
            weight: with_endings(stems, &["weight", "gamma"]),
            bias: with_endings(stems, &["bias", "beta"]),
            ..Self::linear(role, stems)
        }
    }

    /// Only a part of the tensor.
    pub fn part(mut self, part: Part) -> Self {
        self.part = part;
        self
    }

    /// All numbered roles in one tensor, along its first dimension.
    pub fn stacked(mut self) -> Self {
        self.stacking = Stacking::Stacked;
        self
    }

    /// Gate and `up` of the feed-forward, fused at one of `stems`; `gate` says which half is the gate.
    pub fn fused_gate(stems: &[&str], gate: Half) -> [Self; 2] {
        let up = match gate {
            Half::First => Half::Second,
            Half::Second => Half::First,
        };
        [("feed_forward.gate", gate), ("feed_forward.up", up)]
            .map(|(role, half)| Self::linear(role, stems).part(Part::Half(half)))
    }

    /// Query, key and value of the attention, fused at one of `stems` in the given layout.
    pub fn fused_attention(stems: &[&str], layout: FusedLayout) -> [Self; 3] {
        let projections = [
            ("attention.query", Projection::Query),
            ("attention.key", Projection::Key),
            ("attention.value", Projection::Value),
        ];
        projections.map(|(role, projection)| {
            Self::linear(role, stems).part(Part::Fused(layout, projection))
        })
    }

    /// Lying as transformers' `Conv1D`.
    pub fn in_out(mut self) -> Self {
        self.orientation = Orientation::InOut;
        self
    }

    /// The names on disk of the role's `parameter`, `weight` or `bias`.
    pub(crate) fn names(&self, parameter: &str) -> &[String] {
        match parameter {
            "bias" => &self.bias,
            _ => &self.weight,
        }
    }
}

fn with_endings(stems: &[&str], endings: &[&str]) -> Vec<String> {
    let names = |stem: &&str| {
        endings
            .iter()
            .map(|ending| format!("{stem}.{ending}"))
            .collect::<Vec<_>>()
    };
    stems.iter().flat_map(names).collect()
}

/// Owned copies, for a table's lists.
pub(crate) fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| item.to_string()).collect()
}

/// Which stack of a checkpoint that holds several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StackPart {
    /// The encoder of an encoder-decoder.
    Encoder,
    /// The decoder of an encoder-decoder.
    Decoder,
    /// The text tower of a two-tower model.
    Text,
    /// The vision tower of a two-tower model.
    Vision,
}

impl fmt::Display for StackPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Encoder => "encoder",
            Self::Decoder => "decoder",
            Self::Text => "text",
            Self::Vision => "vision",
        })
    }
}

/// Where the configuration of a family's blocks comes from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StackSource {
    /// It is read from `config.json`.
    Json(fn(&ConfigJson) -> Result<StackConfig>),
    /// It is given.
    Given(Box<StackConfig>),
}

/// A checkpoint family: a table of rules and the reading of its `config.json`.
#[derive(Clone, Debug)]
pub struct Family {
    /// Its name.
    pub name: String,
    /// Values of `model_type` that mean this family.
    pub model_types: Vec<String>,
    /// Which stack it describes, if the checkpoint holds several.
    pub part: Option<StackPart>,
    /// What may stand before every name, tried in order: headless files drop it.
    pub prefixes: Vec<String>,
    /// What stands before the names of block `{i}`.
    pub block: String,
    /// Rules inside a block.
    pub block_rules: Vec<Rule>,
    /// Rules outside the blocks.
    pub stack_rules: Vec<Rule>,
    /// Tensors that are no parameters and are left out: patterns with `*`.
    pub ignored: Vec<String>,
    /// Parameters of parts that are no blocks (embeddings, heads): patterns with `*`.
    pub outside: Vec<String>,
    /// Where the configuration of its blocks comes from.
    pub config: StackSource,
    /// Reads from `config.json` how fresh parameters are drawn.
    pub initialisation: fn(&ConfigJson) -> Result<Initialisation>,
    /// Reads from `config.json` which names a new checkpoint has where a role has several: patterns with `*`.
    pub new_names: fn(&ConfigJson) -> Result<&'static [&'static str]>,
}

impl Family {
    /// An empty table whose configuration `config` reads.
    pub fn new(
        name: &str,
        model_types: &[&str],
        config: fn(&ConfigJson) -> Result<StackConfig>,
    ) -> Self {
        Self::with_config(name, model_types, StackSource::Json(config))
    }

    /// An empty table for blocks of the given configuration.
    pub fn given(name: &str, config: StackConfig) -> Self {
        Self::with_config(name, &[], StackSource::Given(Box::new(config)))
    }

    fn with_config(name: &str, model_types: &[&str], config: StackSource) -> Self {
        Self {
            name: name.to_string(),
            model_types: strings(model_types),
            part: None,
            prefixes: vec![],
            block: String::new(),
            block_rules: vec![],
            stack_rules: vec![],
            ignored: vec![],
            outside: vec![],
            config,
            initialisation: fresh::normal,
            new_names: |_| Ok(&[]),
        }
    }

    /// Of one stack of a checkpoint that holds several.
    pub fn part(mut self, part: StackPart) -> Self {
        self.part = Some(part);
        self
    }

    /// With what may stand before every name, in the order in which it is tried.
    pub fn prefixes(mut self, prefixes: &[&str]) -> Self {
        self.prefixes = strings(prefixes);
        self
    }

    /// With blocks whose names start with `block`, in which `{i}` is their number.
    pub fn blocks(mut self, block: &str, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.block = block.to_string();
        self.block_rules.extend(rules);
        self
    }

    /// With more rules inside a block; of several for one role, the first whose tensor is there counts.
    pub fn block_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.block_rules.extend(rules);
        self
    }

    /// With rules outside the blocks.
    pub fn stack_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.stack_rules.extend(rules);
        self
    }

    /// Leaving out tensors that are no parameters: patterns with `*`.
    pub fn ignored(mut self, patterns: &[&str]) -> Self {
        self.ignored.extend(strings(patterns));
        self
    }

    /// With parameters of parts that are no blocks: patterns with `*`.
    pub fn outside(mut self, patterns: &[&str]) -> Self {
        self.outside.extend(strings(patterns));
        self
    }

    /// With fresh parameters drawn as `read` finds in `config.json`, instead of from one normal distribution.
    pub fn initialisation(mut self, read: fn(&ConfigJson) -> Result<Initialisation>) -> Self {
        self.initialisation = read;
        self
    }

    /// With the names that `read` finds in `config.json` for new checkpoints, instead of the first of each role.
    pub fn new_names(mut self, read: fn(&ConfigJson) -> Result<&'static [&'static str]>) -> Self {
        self.new_names = read;
        self
    }

    /// The rules for a role inside a block, or outside the blocks, and the number in the role.
    pub(crate) fn rules(&self, role: &str, in_block: bool) -> (Vec<&Rule>, Option<usize>) {
        let rules = if in_block {
            &self.block_rules
        } else {
            &self.stack_rules
        };
        let number = role.split('.').find_map(|segment| segment.parse().ok());
        let pattern = |segment| match number {
            Some(_) if str::parse::<usize>(segment).is_ok() => "{e}",
            _ => segment,
        };
        let pattern: Vec<&str> = role.split('.').map(pattern).collect();
        let pattern = pattern.join(".");
        (
            rules.iter().filter(|rule| rule.role == pattern).collect(),
            number,
        )
    }
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

    /// transformers: GPT-NeoX views the output as (heads, 3, head_dim), Falcon-40b as
    /// (kv_heads, heads / kv_heads + 2, head_dim).
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
