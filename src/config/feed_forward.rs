//! The configuration of feed-forwards and mixtures of experts.

use serde::{Deserialize, Serialize};

use super::{Activation, probability, setters, size};
use crate::error::{Error, Result};

/// Whether a feed-forward is gated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FeedForwardForm {
    /// `down(act(up(x)))`.
    Plain,
    /// `down(act(gate(x)) * up(x))`, a gated linear unit (Shazeer 2020, <https://arxiv.org/abs/2002.05202>).
    Gated,
}

/// The configuration of a position-wise feed-forward network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct FeedForwardConfig {
    /// Width of the input and the output.
    pub d_model: usize,
    /// Width of the hidden layer.
    pub d_ff: usize,
    /// The activation function.
    pub activation: Activation,
    /// Whether it is plain or gated.
    pub form: FeedForwardForm,
    /// Whether `up` (and `gate`) have a bias.
    pub up_bias: bool,
    /// Whether `down` has a bias.
    pub down_bias: bool,
    /// Dropout probability of the hidden activations, after the activation function.
    pub dropout: f64,
    /// The mixture of experts that consists of such networks; `None` for a single network.
    pub experts: Option<ExpertsConfig>,
}

/// How the router's probabilities of the chosen experts are normalised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutingWeights {
    /// Not at all: they are the softmax over all experts.
    Softmax,
    /// Divided by their sum, so that those of the chosen experts add up to 1.
    Renormalized,
}

/// The configuration of a mixture of experts in place of a single feed-forward (Shazeer et al. 2017,
/// <https://arxiv.org/abs/1701.06538>). The sizes of the feed-forward are those of each expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertsConfig {
    /// Number of experts.
    pub n_experts: usize,
    /// Number of experts that each position uses.
    pub top_k: usize,
    /// How their outputs are weighted.
    pub weights: RoutingWeights,
    /// Hidden width of a shared expert that every position uses, its output multiplied by a sigmoid gate; `None` without one.
    pub shared_d_ff: Option<usize>,
}

impl FeedForwardConfig {
    /// A plain feed-forward, `down(gelu(up(x)))`, with biases, `d_ff = 4 * d_model` and no dropout.
    pub fn new(d_model: usize) -> Self {
        Self {
            d_model,
            d_ff: d_model.saturating_mul(4),
            activation: Activation::Gelu,
            form: FeedForwardForm::Plain,
            up_bias: true,
            down_bias: true,
            dropout: 0.0,
            experts: None,
        }
    }

    setters! {
        /// Sets the hidden width.
        with_d_ff(d_ff: usize) => d_ff = d_ff;
        /// Sets the activation function.
        with_activation(activation: Activation) => activation = activation;
        /// Sets whether it is plain or gated.
        with_form(form: FeedForwardForm) => form = form;
        /// Sets the dropout probability of the hidden activations.
        with_dropout(p: f64) => dropout = p;
        /// Makes it a mixture of experts of this form, or a single network.
        with_experts(experts: Option<ExpertsConfig>) => experts = experts;
    }

    /// Sets whether the projections have biases.
    pub fn with_bias(mut self, bias: bool) -> Self {
        (self.up_bias, self.down_bias) = (bias, bias);
        self
    }

    /// Checks sizes and probabilities.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] says which setting is wrong, and what is expected.
    pub fn validate(&self) -> Result<()> {
        size("d_model", self.d_model)?;
        size("d_ff", self.d_ff)?;
        if let Some(experts) = &self.experts {
            if experts.top_k == 0 || experts.top_k > experts.n_experts {
                return Err(Error::InvalidConfig(format!(
                    "each position uses {} of {} experts",
                    experts.top_k, experts.n_experts
                )));
            }
            size("n_experts", experts.n_experts)?;
            if let Some(d_ff) = experts.shared_d_ff {
                size("the shared expert's d_ff", d_ff)?;
            }
        }
        probability("feed-forward dropout", self.dropout)
    }
}
