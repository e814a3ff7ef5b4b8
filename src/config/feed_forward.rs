//! The feed-forward as data, and mixtures of several.

use serde::{Deserialize, Serialize};

use super::{Activation, positive, probability};
use crate::{Error, Result};

/// Whether a feed-forward multiplies its activation by a second projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FeedForwardForm {
    /// `down(act(up(x)))`.
    Plain,
    /// `down(act(gate(x)) * up(x))`, a gated linear unit (Shazeer 2020, <https://arxiv.org/abs/2002.05202>).
    Gated,
}

/// A position-wise feed-forward network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct FeedForwardConfig {
    /// Width of input and output.
    pub d_model: usize,
    /// Width of the hidden layer.
    pub d_ff: usize,
    /// The non-linearity.
    pub activation: Activation,
    /// Plain or gated.
    pub form: FeedForwardForm,
    /// Whether `up` (and `gate`) have a bias.
    pub up_bias: bool,
    /// Whether `down` has a bias.
    pub down_bias: bool,
    /// Probability of dropping an activation in training, after the non-linearity.
    pub dropout: f64,
    /// Several such networks of which each position uses a few, or just one.
    pub experts: Option<ExpertsConfig>,
}

/// What a router's probabilities are divided by once the best are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutingWeights {
    /// Nothing: they are the softmax over all experts.
    Softmax,
    /// Their sum, so that the chosen ones add up to 1.
    Renormalised,
}

/// A mixture of experts in the place of one feed-forward (Shazeer et al. 2017,
/// <https://arxiv.org/abs/1701.06538>). The feed-forward's own sizes are those of each expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertsConfig {
    /// How many experts there are.
    pub n_experts: usize,
    /// How many each position uses.
    pub top_k: usize,
    /// What their outputs are weighted with.
    pub weights: RoutingWeights,
    /// Hidden width of an expert that every position uses, its output times a sigmoid gate.
    pub shared_d_ff: Option<usize>,
}

impl FeedForwardConfig {
    /// `down(gelu(up(x)))` with biases, `d_ff = 4 * d_model` and no dropout.
    pub fn new(d_model: usize) -> Self {
        Self {
            d_model,
            d_ff: 4 * d_model,
            activation: Activation::Gelu,
            form: FeedForwardForm::Plain,
            up_bias: true,
            down_bias: true,
            dropout: 0.0,
            experts: None,
        }
    }

    /// With a hidden width of `d_ff`.
    pub fn with_d_ff(mut self, d_ff: usize) -> Self {
        self.d_ff = d_ff;
        self
    }

    /// With another non-linearity.
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Plain or gated.
    pub fn with_form(mut self, form: FeedForwardForm) -> Self {
        self.form = form;
        self
    }

    /// With or without biases, on all projections.
    pub fn with_bias(mut self, bias: bool) -> Self {
        (self.up_bias, self.down_bias) = (bias, bias);
        self
    }

    /// With dropout of probability `p` after the activation.
    pub fn with_dropout(mut self, p: f64) -> Self {
        self.dropout = p;
        self
    }

    /// As a mixture of experts of this form, or not.
    pub fn with_experts(mut self, experts: Option<ExpertsConfig>) -> Self {
        self.experts = experts;
        self
    }

    /// Checks sizes and probabilities.
    pub fn validate(&self) -> Result<()> {
        positive("d_model", self.d_model)?;
        positive("d_ff", self.d_ff)?;
        if let Some(experts) = &self.experts
            && (experts.top_k == 0 || experts.top_k > experts.n_experts)
        {
            return Err(Error::InvalidConfig(format!(
                "each position uses {} of {} experts",
                experts.top_k, experts.n_experts
            )));
        }
        probability("feed-forward dropout", self.dropout)
    }
}
