//! The configuration of feed-forwards and mixtures of experts.

use serde::{Deserialize, Serialize};

use super::{Activation, XieluConfig, finite, positive, probability, setters, size};
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

/// Bounds of a gated unit: `act(min(gate, limit)) · (min(max(up, -limit), limit) + offset)` (gpt-oss).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateClamp {
    /// The bound.
    pub limit: f64,
    /// What is added to `up` behind it.
    pub offset: f64,
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
    /// An xIELU in place of the activation function.
    #[serde(default)]
    pub xielu: Option<XieluConfig>,
    /// Whether it is plain or gated.
    pub form: FeedForwardForm,
    /// Bounds of gate and `up`, of a gated one.
    #[serde(default)]
    pub clamp: Option<GateClamp>,
    /// Of a gated one, the share of the gate's outputs that become 0 before the activation function, if they are distributed
    /// normally: `max(gate - mean - z · deviation, 0)` over each row, with the quantile `z` of that share (Gemma 3n).
    #[serde(default)]
    pub sparsity: Option<f64>,
    /// Whether `up` (and `gate`) have a bias.
    pub up_bias: bool,
    /// Whether `down` has a bias.
    pub down_bias: bool,
    /// Dropout probability of the hidden activations, after the activation function.
    pub dropout: f64,
    /// The mixture of experts that consists of such networks; `None` for a single network.
    pub experts: Option<ExpertsConfig>,
}

/// How the router's numbers become scores of experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RoutingScores {
    /// The softmax over all experts (Mixtral).
    Softmax,
    /// The sigmoid of each (DeepSeek-V3).
    Sigmoid,
    /// They are the scores.
    Logits,
}

/// How the scores of the chosen experts become weights of their outputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutingWeights {
    /// They are the scores.
    Scores,
    /// Divided by their sum, so that those of the chosen experts add up to 1.
    Renormalized,
    /// The experts are chosen one after another. The weight of each is its share in the softmax over those not chosen before it
    /// whose scores s are near the best of them, b: `(b - s) / max(|s|, b) <= tolerance`. In training each is drawn from that
    /// softmax, and counts a third in three of four cases where it is not the best, which its gradient does not (sparse mixer,
    /// Liu et al. 2024, <https://arxiv.org/abs/2409.12136>; transformers' `sparsemixer`). Of [`RoutingScores::Logits`].
    AmongNear {
        /// Which scores are near.
        tolerance: f64,
    },
}

/// Experts in groups of equal size, of which only those in the best groups can be chosen (DeepSeek-V2 and V3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// Number of groups; it divides that of the experts.
    pub n_groups: usize,
    /// Number of groups that each position chooses from.
    pub top_groups: usize,
    /// How many of a group's largest scores are summed to judge it.
    pub judged_by: usize,
}

/// How each position chooses its experts, and weights their outputs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoutingConfig {
    /// Number of experts that each position uses.
    pub top_k: usize,
    /// How the router's numbers become scores.
    pub scores: RoutingScores,
    /// How the scores of those chosen become weights.
    pub weights: RoutingWeights,
    /// Factor on the weights.
    pub scale: f64,
    /// The groups that are chosen first, if any.
    pub groups: Option<ExpertGroups>,
}

/// What is multiplied by the weight of a chosen expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Weighted {
    /// Its output.
    #[default]
    Outputs,
    /// Its input (Llama 4).
    Inputs,
}

/// An expert that every position uses, of the same form as the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedExpertConfig {
    /// Its hidden width.
    pub d_ff: usize,
    /// Whether its output is multiplied by the sigmoid of a gate.
    pub gate: bool,
}

/// The configuration of a mixture of experts in place of a single feed-forward (Shazeer et al. 2017,
/// <https://arxiv.org/abs/1701.06538>). The sizes of the feed-forward are those of each expert.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
pub struct ExpertsConfig {
    /// Number of experts.
    pub n_experts: usize,
    /// How each position chooses among them.
    pub routing: RoutingConfig,
    /// Whether the router has a bias.
    #[serde(default)]
    pub router_bias: bool,
    /// Whether each expert has a number that is added to its score for the choice alone, which balances their use and has no
    /// gradient (Wang et al. 2024, <https://arxiv.org/abs/2408.15664>).
    pub correction: bool,
    /// What the weights multiply.
    #[serde(default)]
    pub weighted: Weighted,
    /// The expert that every position uses, if any.
    pub shared: Option<SharedExpertConfig>,
}

impl RoutingConfig {
    /// Each position uses `top_k` experts, weighted by the softmax over all.
    pub fn new(top_k: usize) -> Self {
        Self {
            top_k,
            scores: RoutingScores::Softmax,
            weights: RoutingWeights::Scores,
            scale: 1.0,
            groups: None,
        }
    }

    /// The same, with weights that add up to 1.
    pub fn renormalized(top_k: usize) -> Self {
        Self {
            weights: RoutingWeights::Renormalized,
            ..Self::new(top_k)
        }
    }

    /// # Errors
    /// If it cannot choose among so many experts.
    pub(crate) fn check(&self, n_experts: usize) -> Result<()> {
        let fail = |reason: String| Err(Error::InvalidConfig(reason));
        let top_k = self.top_k;
        if top_k == 0 || top_k > n_experts {
            return fail(format!("each position uses {top_k} of {n_experts} experts"));
        }
        finite("the factor on the weights of experts", self.scale)?;
        let is_drawn = matches!(self.weights, RoutingWeights::AmongNear { .. });
        if is_drawn != (self.scores == RoutingScores::Logits) {
            return fail(format!(
                "weights {:?} of scores {:?}; those among near scores are of logits, and no others are",
                self.weights, self.scores
            ));
        }
        if let RoutingWeights::AmongNear { tolerance } = self.weights {
            finite("how far a score may be from the best", tolerance)?;
            if self.groups.is_some() {
                return fail("experts chosen one after another are in no groups".to_string());
            }
        }
        let Some(groups) = self.groups else {
            return Ok(());
        };
        let ExpertGroups {
            n_groups,
            top_groups,
            judged_by,
        } = groups;
        if n_groups == 0 || !n_experts.is_multiple_of(n_groups) {
            return fail(format!(
                "{n_experts} experts are not {n_groups} groups of equal size"
            ));
        }
        let size = n_experts / n_groups;
        if !(1..=n_groups).contains(&top_groups) || top_groups * size < top_k {
            return fail(format!(
                "each position uses {top_k} experts of {top_groups} groups of {n_groups}, of {size} experts each"
            ));
        }
        if !(1..=size).contains(&judged_by) {
            return fail(format!(
                "groups of {size} experts are judged by {judged_by} of them"
            ));
        }
        Ok(())
    }
}

impl ExpertsConfig {
    /// So many experts without a shared one.
    pub fn new(n_experts: usize, routing: RoutingConfig) -> Self {
        Self {
            n_experts,
            routing,
            router_bias: false,
            correction: false,
            weighted: Weighted::Outputs,
            shared: None,
        }
    }

    setters! {
        /// Sets whether the router has a bias.
        with_router_bias(bias: bool) => router_bias = bias;
        /// Sets whether each expert has a number that corrects its score for the choice.
        with_correction(correction: bool) => correction = correction;
        /// Sets what the weights of experts multiply.
        with_weighted(weighted: Weighted) => weighted = weighted;
        /// Sets the expert that every position uses, or removes it.
        with_shared(shared: Option<SharedExpertConfig>) => shared = shared;
    }
}

impl FeedForwardConfig {
    /// A plain feed-forward, `down(gelu(up(x)))`, with biases, `d_ff = 4 * d_model` and no dropout.
    pub fn new(d_model: usize) -> Self {
        Self {
            d_model,
            d_ff: d_model.saturating_mul(4),
            activation: Activation::Gelu,
            xielu: None,
            form: FeedForwardForm::Plain,
            clamp: None,
            sparsity: None,
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
        /// Puts an xIELU in place of the activation function, or removes it.
        with_xielu(xielu: Option<XieluConfig>) => xielu = xielu;
        /// Sets whether it is plain or gated.
        with_form(form: FeedForwardForm) => form = form;
        /// Sets bounds of gate and `up`, or removes them.
        with_clamp(clamp: Option<GateClamp>) => clamp = clamp;
        /// Sets the share of the gate's outputs that become 0, or removes it.
        with_sparsity(sparsity: Option<f64>) => sparsity = sparsity;
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
        if let Some(clamp) = self.clamp {
            if self.form == FeedForwardForm::Plain {
                let reason = "a plain feed-forward has no gate to clamp; set `form` to gated";
                return Err(Error::InvalidConfig(reason.to_string()));
            }
            if self.xielu.is_some() {
                let reason = "a gate with an xIELU has no clamp; remove one of the two";
                return Err(Error::InvalidConfig(reason.to_string()));
            }
            positive("the bound of gate and up", clamp.limit)?;
            finite("the offset of up", clamp.offset)?;
        }
        if let Some(sparsity) = self.sparsity {
            if self.form == FeedForwardForm::Plain || self.clamp.is_some() {
                let reason = "sparsity is of a gate without a clamp; set `form` to gated, and remove the clamp";
                return Err(Error::InvalidConfig(reason.to_string()));
            }
            positive("sparsity", sparsity)?;
            probability("sparsity", sparsity)?;
        }
        if let Some(xielu) = self.xielu {
            xielu.validate()?;
        }
        if let Some(experts) = &self.experts {
            experts.routing.check(experts.n_experts)?;
            if experts.correction && experts.routing.scores == RoutingScores::Logits {
                let reason = "experts chosen one after another have no correction of their scores";
                return Err(Error::InvalidConfig(reason.to_string()));
            }
            size("n_experts", experts.n_experts)?;
            if let Some(shared) = experts.shared {
                size("the shared expert's d_ff", shared.d_ff)?;
            }
        }
        probability("feed-forward dropout", self.dropout)
    }
}
