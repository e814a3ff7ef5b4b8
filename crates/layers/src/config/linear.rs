//! The configuration of linear layers and multi-layer perceptrons.

use serde::{Deserialize, Serialize};

use super::Activation;

/// The configuration of a linear layer, `y = x·Wᵀ + b`. Pass it to [`Linear::new`](crate::Linear::new).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct LinearConfig {
    /// The width of the input.
    pub d_in: usize,
    /// The width of the output.
    pub d_out: usize,
    /// The layer has a bias.
    pub bias: bool,
    /// The distribution for new parameters.
    pub init: LinearInit,
}

/// The distribution for a linear layer's new parameters. Loaded parameters ignore it.
/// Set it in [`LinearConfig::init`](crate::LinearConfig::init).
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
        /// The factor on the deviation.
        gain: f64,
    },
}

impl LinearConfig {
    /// Returns a layer with a bias, and with `torch.nn.Linear`'s distribution.
    pub fn new(d_in: usize, d_out: usize) -> Self {
        Self {
            d_in,
            d_out,
            bias: true,
            init: LinearInit::Torch,
        }
    }

    /// Sets whether the layer has a bias.
    pub fn with_bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// Sets the distribution for new parameters.
    pub fn with_init(mut self, init: LinearInit) -> Self {
        self.init = init;
        self
    }
}

/// The configuration of a multi-layer perceptron. Pass it to [`Mlp::new`](crate::Mlp::new).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MlpConfig {
    /// The widths of the input, each hidden layer and the output.
    pub widths: Vec<usize>,
    /// The activation function after each layer except the last.
    pub activation: Activation,
}

impl MlpConfig {
    /// Returns a perceptron with these widths, from input to output, and this activation between its layers.
    #[must_use]
    pub fn new(widths: Vec<usize>, activation: Activation) -> Self {
        Self { widths, activation }
    }
}
