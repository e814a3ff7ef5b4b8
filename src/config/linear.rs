//! The configuration of linear layers, and of perceptrons made of them.

use serde::{Deserialize, Serialize};

use super::Activation;

/// The configuration of a linear layer, `y = x·Wᵀ + b`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct LinearConfig {
    /// Width of the input.
    pub d_in: usize,
    /// Width of the output.
    pub d_out: usize,
    /// Whether it has a bias.
    pub bias: bool,
    /// The distribution of fresh parameters.
    pub init: LinearInit,
}

/// The distribution of a linear layer's fresh parameters. It has no effect on loaded ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LinearInit {
    /// `torch.nn.Linear`'s default: weight and bias uniform in `±1/√d_in`.
    Torch,
    /// Weight normal with deviation `√(2/d_in)` (He et al. 2015, ReLU gain), bias zero.
    KaimingNormal,
    /// Weight normal with deviation `gain · √(2/(d_in + d_out))` (Glorot and Bengio 2010), bias zero.
    XavierNormal {
        /// Factor on the deviation.
        gain: f64,
    },
}

impl LinearConfig {
    /// A layer with a bias, and `torch.nn.Linear`'s fresh parameters.
    pub fn new(d_in: usize, d_out: usize) -> Self {
        Self {
            d_in,
            d_out,
            bias: true,
            init: LinearInit::Torch,
        }
    }

    /// Sets whether it has a bias.
    pub fn with_bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// Sets the distribution of fresh parameters.
    pub fn with_init(mut self, init: LinearInit) -> Self {
        self.init = init;
        self
    }
}

/// The configuration of a multi-layer perceptron.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MlpConfig {
    /// Widths of the input, of each hidden layer and of the output.
    pub widths: Vec<usize>,
    /// The activation after each layer but the last.
    pub activation: Activation,
}
