//! The distributions of fresh parameters.

use serde::{Deserialize, Serialize};

use super::pattern::matches;

/// The distribution of one fresh parameter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Draw {
    /// The layer's own default: the identity for a norm, Kaiming and Xavier normal weights for a feed-forward,
    /// PyTorch's default for every other linear layer.
    Layer,
    /// `torch.nn.Linear`'s default: weight and bias uniform in `±1/√d_in`.
    TorchLinear,
    /// The same value everywhere.
    Constant(f64),
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        deviation: f64,
    },
    /// Normal with mean 0, redrawn outside `±cut`; the resulting deviation is a little smaller than the given one.
    TruncatedNormal {
        /// Standard deviation before the cut.
        deviation: f64,
        /// The largest absolute value.
        cut: f64,
    },
    /// Uniform in `±bound`.
    Uniform {
        /// The largest absolute value.
        bound: f64,
    },
    /// Not drawn: sines of each position, then cosines, of wavelengths from 2π to 20,000π (Whisper's table of positions).
    Sinusoids,
    /// Not drawn: sines and cosines of the column of each patch of a square image, then of its row, of wavelengths from 2π to
    /// 20,000π, behind zeros for the token in front (ViT-MAE).
    PatchSinusoids,
}

/// The distribution of every fresh parameter of a model: a list of patterns over roles, of which the last match counts.
///
/// ```
/// use candle_blocks::config::{Draw, Initialization};
/// // BERT's, but with smaller output projections.
/// let small = Draw::Normal { deviation: 0.005 };
/// let initialization = Initialization::normal(0.02).with("*.output.weight", small);
/// assert_eq!(initialization.draw("blocks.3.attention.output.weight"), small);
/// assert_eq!(initialization.draw("blocks.3.attention.output.bias"), Draw::Constant(0.0));
/// assert_eq!(initialization.draw("blocks.3.attention_norm.weight"), Draw::Layer);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct Initialization {
    rules: Vec<(String, Draw)>,
    /// Rows of tables, by role, that are 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    zero_rows: Vec<(String, usize)>,
    /// Roles that are not trained: patterns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    untrained: Vec<String>,
}

/// Parameters that begin with the same numbers in every scheme.
const NEUTRAL: [&str; 6] = [
    "*norm*",
    "*_layer_scale.weight",
    "*output_scale.weight",
    "*input_scale.weight",
    "*router.correction.weight",
    "*xielu.*",
];

impl Initialization {
    /// Every layer's own default: see [`Draw::Layer`].
    pub fn layers() -> Self {
        Self::default()
    }

    /// The defaults of PyTorch's `nn.Linear` and `nn.LayerNorm`.
    pub fn torch() -> Self {
        let all = Self::default().with("*", Draw::TorchLinear);
        all.with("*sinks.weight", Draw::Layer).with_neutral()
    }

    /// Normal weights with the given standard deviation, biases 0, norms the identity: transformers'
    /// `PreTrainedModel._init_weights`
    /// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/modeling_utils.py>).
    pub fn normal(deviation: f64) -> Self {
        Self::default()
            .with("*weight", Draw::Normal { deviation })
            .with("*bias", Draw::Constant(0.0))
            .with_neutral()
    }

    /// GPT-2's initialization: like [`Self::normal`], but the projections that write to the residual stream are divided by
    /// the square root of their number, two per block (Radford et al. 2019, section 2.3).
    pub fn gpt2(deviation: f64, n_blocks: usize) -> Self {
        let deviation_of_residual = deviation / (2.0 * n_blocks as f64).sqrt();
        let residual = Draw::Normal {
            deviation: deviation_of_residual,
        };
        Self::normal(deviation)
            .with("*attention.output.weight", residual)
            .with("*feed_forward.down.weight", residual)
    }

    /// Draws the roles that match `pattern` (`*` stands for any text) from `draw`, overriding earlier patterns.
    pub fn with(mut self, pattern: &str, draw: Draw) -> Self {
        self.rules.push((pattern.to_string(), draw));
        self
    }

    /// Sets a row of a role's table to 0, as PyTorch does for the `padding_idx` of an embedding.
    pub fn with_zero_row(mut self, role: &str, row: usize) -> Self {
        self.zero_rows.push((role.to_string(), row));
        self
    }

    /// Makes the roles that match `pattern` constants, which get no gradient: buffers of PyTorch.
    pub fn with_untrained(mut self, pattern: &str) -> Self {
        self.untrained.push(pattern.to_string());
        self
    }

    /// Draws the roles that begin with `part` and a dot as `other` does those without: the second of two stacks.
    pub fn with_part(mut self, part: &str, other: Self) -> Self {
        let of_part = |pattern: &str| format!("{part}.{pattern}");
        self = self.with(&of_part("*"), Draw::Layer);
        let rules = other.rules.into_iter();
        self.rules
            .extend(rules.map(|(pattern, draw)| (of_part(&pattern), draw)));
        let rows = other.zero_rows.into_iter();
        self.zero_rows
            .extend(rows.map(|(role, row)| (of_part(&role), row)));
        let untrained = other.untrained.iter().map(|role| of_part(role));
        self.untrained.extend(untrained);
        self
    }

    fn with_neutral(self) -> Self {
        NEUTRAL
            .iter()
            .fold(self, |all, pattern| all.with(pattern, Draw::Layer))
    }

    /// The distribution for the parameter of a role.
    pub fn draw(&self, role: &str) -> Draw {
        let rule = self.rules.iter().rev().find(|(p, _)| matches(p, role));
        rule.map_or(Draw::Layer, |&(_, draw)| draw)
    }

    /// Whether the parameter of a role gets a gradient.
    pub fn is_trained(&self, role: &str) -> bool {
        !self.untrained.iter().any(|pattern| matches(pattern, role))
    }

    /// The rows of a role's table that are 0.
    pub fn zero_rows(&self, role: &str) -> impl Iterator<Item = usize> {
        let of_role = self
            .zero_rows
            .iter()
            .filter(move |(known, _)| known == role);
        of_role.map(|&(_, row)| row)
    }
}
