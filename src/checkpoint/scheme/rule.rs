//! One line of a family's table: a role, its names on disk, and how the tensor lies there.

use serde::Deserialize;

use super::{FusedLayout, Half, Part, Projection, strings};

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
#[must_use]
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
