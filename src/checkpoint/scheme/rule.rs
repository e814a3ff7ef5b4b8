//! One line in a family's table: a role, its names on disk, and how the tensor is stored.

use serde::Deserialize;

use super::{
    FusedLayout, GateHalf, Part, Projection, RecurrentLayout, RecurrentProjection, strings,
};

/// A weight matrix's orientation on disk. Set it in [`Rule::orientation`](crate::checkpoint::scheme::Rule::orientation).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Orientation {
    /// `[d_out, d_in]`, as in `torch.nn.Linear`: `y = x·Wᵀ`.
    #[default]
    OutIn,
    /// `[d_in, d_out]`, as in transformers' `Conv1D` and NumPy code: `y = x·W`.
    InOut,
}

/// Storage for numbered parameters, such as experts: separate tensors, or stacked in one.
/// Set it in [`Rule::stacking`](crate::checkpoint::scheme::Rule::stacking).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stacking {
    /// Each is a separate tensor.
    #[default]
    Apart,
    /// All are stacked in one tensor along an additional first dimension.
    Stacked,
    /// All are in one tensor, one after another along its own first dimension.
    Joined,
}

/// Maps one role to its names on disk.
///
/// `{e}` in a role and in its names stands for a number, such as an expert's or a head's index.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[must_use]
pub struct Rule {
    /// The role: `attention.query`, `feed_forward_norm` ... inside a block, or `final_norm`.
    pub role: String,
    /// Possible names of the weight, in the order in which they are tried.
    pub weight: Vec<String>,
    /// Possible names of the bias, in the order in which they are tried.
    #[serde(default)]
    pub bias: Vec<String>,
    /// The weight's orientation.
    #[serde(default)]
    pub orientation: Orientation,
    /// The part of the tensor that belongs to the role.
    #[serde(default)]
    pub part: Part,
    /// Numbered roles are separate or stacked in one tensor.
    #[serde(default)]
    pub stacking: Stacking,
    /// The number of leading dimensions of size 1, as in a token stored as `[1, 1, d_model]`.
    #[serde(default)]
    pub leading_ones: usize,
}

impl Rule {
    /// Makes a rule for a linear layer named by one of `stems` (plus `.weight` and `.bias`), stored as in `nn.Linear`.
    pub fn linear(role: &str, stems: &[&str]) -> Self {
        Self {
            role: role.to_string(),
            weight: with_endings(stems, &["weight"]),
            bias: with_endings(stems, &["bias"]),
            orientation: Orientation::OutIn,
            part: Part::Whole,
            stacking: Stacking::Apart,
            leading_ones: 0,
        }
    }

    /// Makes a rule for a parameter with one of the full names `names`, and its bias with one of `bias`.
    pub fn named(role: &str, names: &[&str], bias: &[&str]) -> Self {
        Self {
            weight: strings(names),
            bias: strings(bias),
            ..Self::linear(role, &[])
        }
    }

    /// Makes a rule for a linear layer named by one of `stems`, stored as in transformers' `Conv1D`.
    pub fn conv1d(role: &str, stems: &[&str]) -> Self {
        Self {
            orientation: Orientation::InOut,
            ..Self::linear(role, stems)
        }
    }

    /// Makes a rule for a norm named by one of `stems`, with PyTorch's or TensorFlow's names for its parameters.
    pub fn norm(role: &str, stems: &[&str]) -> Self {
        Self {
            weight: with_endings(stems, &["weight", "gamma"]),
            bias: with_endings(stems, &["bias", "beta"]),
            ..Self::linear(role, stems)
        }
    }

    /// Makes a rule for a parameter with one of the full names `names`, stored with leading dimensions of size 1.
    pub fn with_leading_ones(role: &str, names: &[&str], leading_ones: usize) -> Self {
        Self {
            leading_ones,
            ..Self::named(role, names, &[])
        }
    }

    /// Restricts the role to a part of the tensor.
    pub fn part(mut self, part: Part) -> Self {
        self.part = part;
        self
    }

    /// Declares that all numbered roles are stacked in one tensor along its first dimension.
    pub fn stacked(mut self) -> Self {
        self.stacking = Stacking::Stacked;
        self
    }

    /// Declares that all numbered roles follow one another in one tensor along its first dimension.
    pub fn joined(mut self) -> Self {
        self.stacking = Stacking::Joined;
        self
    }

    /// Makes rules for a feed-forward whose gate and `up` are fused in a tensor named by one of `stems`; `gate` is the half
    /// with the gate.
    pub fn fused_gate(stems: &[&str], gate: GateHalf) -> [Self; 2] {
        let up = match gate {
            GateHalf::First => GateHalf::Second,
            GateHalf::Second => GateHalf::First,
        };
        [("feed_forward.gate", gate), ("feed_forward.up", up)]
            .map(|(role, half)| Self::linear(role, stems).part(Part::Half(half)))
    }

    /// Makes rules for an attention whose query, key and value are fused, in the given layout, in a tensor named by one of
    /// `stems`.
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

    /// Makes a rule for a projection, or a convolution, of a recurrent mixer in a fused tensor named by one of `stems`.
    pub fn recurrent(
        role: &str,
        stems: &[&str],
        layout: RecurrentLayout,
        projection: RecurrentProjection,
    ) -> Self {
        Self::linear(role, stems).part(Part::Recurrent(layout, projection))
    }

    /// Declares that the weight is stored as `[d_in, d_out]`, as in transformers' `Conv1D`.
    pub fn in_out(mut self) -> Self {
        self.orientation = Orientation::InOut;
        self
    }

    /// Returns the names on disk for the role's `parameter`, `weight` or `bias`.
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
