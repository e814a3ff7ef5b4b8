//! Activation functions, with their names in transformers' `ACT2FN`.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// An element-wise activation function.
///
/// Its name is the name in transformers' `ACT2FN`
/// (<https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/activations.py>). `"gelu"` is always
/// the exact form, with erf.
///
/// ```
/// use candle_blocks::Activation;
/// assert_eq!("gelu".parse::<Activation>()?, Activation::Gelu);
/// assert_eq!("gelu_new".parse::<Activation>()?, Activation::GeluTanh);
/// assert!("gleu".parse::<Activation>().is_err());
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
#[non_exhaustive]
pub enum Activation {
    /// `x · Φ(x) = x/2 · (1 + erf(x/√2))` (Hendrycks and Gimpel 2016, <https://arxiv.org/abs/1606.08415>).
    Gelu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715 x³)))`.
    GeluTanh,
    /// `x · σ(1.702 x)`.
    QuickGelu,
    /// [`Self::Gelu`] clipped to `[-10, 10]`.
    ClippedGelu,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²`.
    Relu2,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `x` where positive, else `0.01 x`.
    LeakyRelu,
    /// `x · σ(x)`, also called swish.
    Silu,
    /// `x · tanh(softplus(x))`.
    Mish,
    /// `x · min(max(x + 3, 0), 6) / 6`.
    HardSwish,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `tanh(x)`.
    Tanh,
    /// `(1 + erf((x - 0.707107) / (0.282095 √2))) / 2`.
    Laplace,
    /// `softplus(x) = ln(1 + exp(x))`, and `x` above 20.
    Softplus,
    /// `√softplus(x)`.
    SqrtSoftplus,
    /// `x`.
    Identity,
}

/// The names for each activation. Serialization uses the first.
const NAMES: &[(&str, Activation)] = &[
    ("gelu", Activation::Gelu),
    ("gelu_python", Activation::Gelu),
    ("gelu_new", Activation::GeluTanh),
    ("gelu_pytorch_tanh", Activation::GeluTanh),
    ("gelu_python_tanh", Activation::GeluTanh),
    ("gelu_fast", Activation::GeluTanh),
    ("gelu_accurate", Activation::GeluTanh),
    ("quick_gelu", Activation::QuickGelu),
    ("gelu_10", Activation::ClippedGelu),
    ("relu", Activation::Relu),
    ("relu2", Activation::Relu2),
    ("relu6", Activation::Relu6),
    ("leaky_relu", Activation::LeakyRelu),
    ("silu", Activation::Silu),
    ("swish", Activation::Silu),
    ("mish", Activation::Mish),
    ("hardswish", Activation::HardSwish),
    ("sigmoid", Activation::Sigmoid),
    ("tanh", Activation::Tanh),
    ("laplace", Activation::Laplace),
    ("softplus", Activation::Softplus),
    ("sqrtsoftplus", Activation::SqrtSoftplus),
    ("linear", Activation::Identity),
];

impl Activation {
    /// Returns all activations, each once.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for &(_, activation) in NAMES {
            if !all.contains(&activation) {
                all.push(activation);
            }
        }
        all
    }

    /// Returns the name in a `config.json`.
    pub fn name(self) -> &'static str {
        NAMES
            .iter()
            .find(|(_, activation)| *activation == self)
            .map(|(name, _)| *name)
            .unwrap_or("unnamed")
    }
}

impl FromStr for Activation {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        NAMES
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, activation)| *activation)
            .ok_or_else(|| Error::UnknownActivation {
                name: name.to_string(),
                known: NAMES.iter().map(|(known, _)| known.to_string()).collect(),
            })
    }
}

impl TryFrom<String> for Activation {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        name.parse()
    }
}

impl From<Activation> for String {
    fn from(activation: Activation) -> Self {
        activation.name().to_string()
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
