//! A checkpoint family as data: which tensor on disk plays which role, and how it lies there.
//!
//! A [`Family`] is a table of rules. Each rule ties a role in this crate's naming
//! (`attention.query`) to names on disk, with an orientation and, where several roles share one
//! tensor, the part of it. Weight and bias of a role share one rule, so they cannot be permuted
//! differently; a rule can be read backwards, so gradients and saved weights find their way home.

use std::ops::Range;

use crate::{
    Result,
    checkpoint::config_json::ConfigJson,
    config::{AttentionConfig, StackConfig},
};

/// Which way a weight matrix lies on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orientation {
    /// `[d_out, d_in]`, as `torch.nn.Linear`: `y = x·Wᵀ`.
    OutIn,
    /// `[d_in, d_out]`, as transformers' `Conv1D` and NumPy code: `y = x·W`.
    InOut,
}

/// One of the three projections that a fused tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// Query.
    Query,
    /// Key.
    Key,
    /// Value.
    Value,
}

/// How query, key and value share one tensor's output features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FusedLayout {
    /// All of the query, then all of the key, then all of the value (GPT-2, Phi-3, ModernBERT).
    Blocks,
    /// For every head its query, key and value (GPT-NeoX, BLOOM).
    PerHead,
    /// For every key/value head the queries it serves, its key and its value (Falcon).
    PerGroup,
}

/// Which output features of a tensor on disk belong to a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Part {
    /// All.
    Whole,
    /// One projection out of a fused query/key/value tensor.
    Fused(FusedLayout, Projection),
}

impl Part {
    /// The output features on disk, in the role's own order; `None` for all.
    pub(crate) fn features(self, config: &AttentionConfig) -> Option<Features> {
        let Self::Fused(layout, projection) = self else {
            return None;
        };
        let AttentionConfig {
            n_heads,
            n_kv_heads,
            head_dim,
            ..
        } = *config;
        // One group is a run of query heads, a key head and a value head; a layout is how the heads are grouped.
        let (groups, queries, keys) = match layout {
            FusedLayout::Blocks => (1, n_heads, n_kv_heads),
            FusedLayout::PerHead => (n_heads, 1, 1),
            FusedLayout::PerGroup => (n_kv_heads, n_heads / n_kv_heads, 1),
        };
        let (start, heads) = match projection {
            Projection::Query => (0, queries),
            Projection::Key => (queries, keys),
            Projection::Value => (queries + keys, keys),
        };
        let group = queries + 2 * keys;
        let range = |g| {
            let first = (g * group + start) * head_dim;
            first..first + heads * head_dim
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

/// Ties one role to its names on disk.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The role: `attention.query`, `feed_forward_norm` ... inside a block, or `final_norm`.
    pub role: String,
    /// Names of the weight, in the order in which they are tried.
    pub weight: Vec<String>,
    /// Names of the bias, in the order in which they are tried.
    pub bias: Vec<String>,
    /// Which way the weight lies.
    pub orientation: Orientation,
    /// Which part of the tensor it is.
    pub part: Part,
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

    /// Query, key and value of `attention`, fused in one tensor in the given layout.
    pub fn fused_attention(rule: Self, layout: FusedLayout) -> [Self; 3] {
        let projections = [
            ("attention.query", Projection::Query),
            ("attention.key", Projection::Key),
            ("attention.value", Projection::Value),
        ];
        projections.map(|(role, projection)| Self {
            role: role.to_string(),
            part: Part::Fused(layout, projection),
            ..rule.clone()
        })
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

/// A checkpoint family: a table of rules and the reading of its `config.json`.
#[derive(Clone, Debug)]
pub struct Family {
    /// Its name.
    pub name: String,
    /// Values of `model_type` that mean this family.
    pub model_types: Vec<String>,
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
    /// Reads the configuration of its blocks.
    pub config: fn(&ConfigJson) -> Result<StackConfig>,
}

impl Family {
    /// The rule for a role inside a block, or outside the blocks.
    pub(crate) fn rule(&self, role: &str, in_block: bool) -> Option<&Rule> {
        let rules = if in_block {
            &self.block_rules
        } else {
            &self.stack_rules
        };
        rules.iter().find(|rule| rule.role == role)
    }
}

/// Whether `name` matches `pattern`, in which `*` stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("*.attn.bias", "h.0.attn.bias", true),
            ("*.attn.bias", "h.0.attn.bias.x", false),
            ("*.attn.bias", "h.0.attn.c_attn.bias", false),
            ("pooler.*", "pooler.dense.weight", true),
            ("pooler.*", "the.pooler.dense.weight", false),
            ("wte.weight", "wte.weight", true),
            ("a*b*c", "abbc", true),
            ("a*b*c", "acb", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
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
                let features = Part::Fused(layout, projection).features(&config);
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
            let features = Part::Fused(layout, projection).features(&config);
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
