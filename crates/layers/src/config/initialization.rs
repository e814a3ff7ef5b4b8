//! The distributions for new parameters.

use serde::{Deserialize, Serialize};

use super::matches;

/// The distribution for a new parameter. Pass it to [`Initialization::with`](crate::config::Initialization::with).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Distribution {
    /// The layer's own default: the identity for a norm, Kaiming and Xavier normal weights for a feed-forward,
    /// PyTorch's default for every other linear layer.
    Layer,
    /// `torch.nn.Linear`'s default: weight and bias uniform in `±1/√d_in`.
    TorchLinear,
    /// A constant.
    Constant(f64),
    /// Normal with mean 0.
    Normal {
        /// The standard deviation.
        deviation: f64,
    },
    /// Normal with mean 0, redrawn outside `±cut`. The resulting deviation is slightly smaller than `deviation`.
    TruncatedNormal {
        /// The standard deviation before the cut.
        deviation: f64,
        /// The largest absolute value.
        cut: f64,
    },
    /// Uniform in `±bound`.
    Uniform {
        /// The largest absolute value.
        bound: f64,
    },
    /// The logarithm of a number that is uniform from `low` to `high` (the rates of gated delta rules).
    LogOfUniform {
        /// The smallest number.
        low: f64,
        /// The largest number.
        high: f64,
    },
    /// The number whose softplus is a step: the step's logarithm is uniform between those of `low` and `high`, and no step
    /// is below `floor` (the biases of steps in Mamba and OLMo Hybrid).
    BeforeSoftplus {
        /// The smallest step.
        low: f64,
        /// The largest step.
        high: f64,
        /// The bound that replaces smaller steps.
        floor: f64,
    },
    /// The number whose softplus is the step after which a share of a state is left: `-ln(share)`, where the share's square is
    /// uniform between those of `low` and `high` (RecurrentGemma's rates).
    BeforeDecay {
        /// The smallest share.
        low: f64,
        /// The largest share.
        high: f64,
    },
    /// Not random: the logarithms of 1, 2, 3 and so on (Mamba-2's rates).
    LogOfCount,
    /// Not random: sines, then cosines for each position, with wavelengths from 2π to 20,000π (Whisper's position
    /// table).
    Sinusoids,
    /// Not random: sines and cosines for each patch's column in a square image, then for its row, with wavelengths
    /// from 2π to 20,000π, after zeros for the class token (ViT-MAE).
    PatchSinusoids,
}

/// The distributions for a model's new parameters: a list of patterns over roles. The last match counts.
///
/// ```
/// use candle_blocks::config::{Distribution, Initialization};
/// // BERT's, but with smaller output projections.
/// let small = Distribution::Normal { deviation: 0.005 };
/// let initialization = Initialization::normal(0.02).with("*.output.weight", small);
/// assert_eq!(initialization.distribution("blocks.3.attention.output.weight"), small);
/// assert_eq!(initialization.distribution("blocks.3.attention.output.bias"), Distribution::Constant(0.0));
/// assert_eq!(initialization.distribution("blocks.3.attention_norm.weight"), Distribution::Layer);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct Initialization {
    rules: Vec<(String, Distribution)>,
    /// Table rows that are 0, by role.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    zero_rows: Vec<(String, usize)>,
    /// Patterns for roles that are not trained.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    untrained: Vec<String>,
}

/// Parameters that start with the same values in every scheme.
const NEUTRAL: [&str; 7] = [
    "*norm*",
    "*_layer_scale.weight",
    "*output_scale.weight",
    "*input_scale.weight",
    "*router.correction.weight",
    "*feed_forward.output_bias.weight",
    "*xielu.*",
];

impl Initialization {
    /// Returns every layer's own default: see [`Distribution::Layer`].
    pub fn layers() -> Self {
        Self::default()
    }

    /// Returns the defaults in PyTorch's `nn.Linear` and `nn.LayerNorm`.
    pub fn torch() -> Self {
        let all = Self::default().with("*", Distribution::TorchLinear);
        all.with("*sinks.weight", Distribution::Layer)
            .with_neutral()
    }

    /// Returns normal weights with this standard deviation, biases 0 and norms the identity: transformers'
    /// `PreTrainedModel._init_weights`
    /// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/modeling_utils.py>).
    pub fn normal(deviation: f64) -> Self {
        Self::default()
            .with("*weight", Distribution::Normal { deviation })
            .with("*bias", Distribution::Constant(0.0))
            .with_neutral()
    }

    /// Returns GPT-2's initialization: like [`Self::normal`], but the two projections per block that write to the
    /// residual stream are divided by the square root of their total number (Radford et al. 2019, section 2.3).
    pub fn gpt2(deviation: f64, n_blocks: usize) -> Self {
        let deviation_of_residual = deviation / (2.0 * n_blocks as f64).sqrt();
        let residual = Distribution::Normal {
            deviation: deviation_of_residual,
        };
        Self::normal(deviation)
            .with("*attention.output.weight", residual)
            .with("*feed_forward.down.weight", residual)
    }

    /// Draws the roles that match `pattern` (`*` stands for any text) from `draw`, overriding earlier patterns.
    pub fn with(mut self, pattern: &str, draw: Distribution) -> Self {
        self.rules.push((pattern.to_string(), draw));
        self
    }

    /// Sets a row in a role's table to 0, as PyTorch does for an embedding's `padding_idx`.
    pub fn with_zero_row(mut self, role: &str, row: usize) -> Self {
        self.zero_rows.push((role.to_string(), row));
        self
    }

    /// Makes the roles that match `pattern` constants without a gradient, like buffers in PyTorch.
    pub fn with_untrained(mut self, pattern: &str) -> Self {
        self.untrained.push(pattern.to_string());
        self
    }

    /// Draws each role with the prefix `part` and a dot from `other`'s distribution for the role without the prefix:
    /// the second stack in a model with two.
    pub fn with_part(mut self, part: &str, other: Self) -> Self {
        let in_part = |pattern: &str| format!("{part}.{pattern}");
        self = self.with(&in_part("*"), Distribution::Layer);
        let rules = other.rules.into_iter();
        self.rules
            .extend(rules.map(|(pattern, draw)| (in_part(&pattern), draw)));
        let rows = other.zero_rows.into_iter();
        self.zero_rows
            .extend(rows.map(|(role, row)| (in_part(&role), row)));
        let untrained = other.untrained.iter().map(|role| in_part(role));
        self.untrained.extend(untrained);
        self
    }

    fn with_neutral(self) -> Self {
        NEUTRAL
            .iter()
            .fold(self, |all, pattern| all.with(pattern, Distribution::Layer))
    }

    /// Returns the distribution for a role's parameter.
    pub fn distribution(&self, role: &str) -> Distribution {
        let rule = self.rules.iter().rev().find(|(p, _)| matches(p, role));
        rule.map_or(Distribution::Layer, |&(_, draw)| draw)
    }

    /// Tells whether a role's parameter gets a gradient.
    pub fn is_trained(&self, role: &str) -> bool {
        !self.untrained.iter().any(|pattern| matches(pattern, role))
    }

    /// Returns the zero rows in a role's table.
    pub fn zero_rows(&self, role: &str) -> impl Iterator<Item = usize> {
        let same_role = self
            .zero_rows
            .iter()
            .filter(move |(known, _)| known == role);
        same_role.map(|&(_, row)| row)
    }
}
