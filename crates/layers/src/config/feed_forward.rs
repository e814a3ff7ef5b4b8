//! The configuration of feed-forwards and mixtures of experts.

use serde::{Deserialize, Serialize};

use super::{Activation, NormConfig, XieluConfig, finite, positive, probability, setters, size};
use crate::error::{Error, Result};

/// A plain or gated feed-forward. Set it in [`FeedForwardConfig::form`](crate::FeedForwardConfig::form).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FeedForwardForm {
    /// `down(act(up(x)))`.
    Plain,
    /// `down(act(gate(x)) * up(x))`, a gated linear unit (Shazeer 2020, <https://arxiv.org/abs/2002.05202>).
    Gated,
    /// No feed-forward: the block is a mixer alone (Mamba-2, Nemotron-H).
    Absent,
}

/// Bounds for a gated unit: `act(min(gate, limit)) · (min(max(up, -limit), limit) + offset)` (gpt-oss).
/// Set them in [`FeedForwardConfig::clamp`](crate::FeedForwardConfig::clamp).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GateClamp {
    /// The bound.
    pub limit: f64,
    /// The offset added to the clamped `up`.
    pub offset: f64,
}

impl GateClamp {
    /// Returns a clamp of gate and up to `limit`, with `offset` added to up.
    #[must_use]
    pub fn new(limit: f64, offset: f64) -> Self {
        Self { limit, offset }
    }
}

/// The configuration of a position-wise feed-forward network. Pass it to [`FeedForward::new`](crate::FeedForward::new).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct FeedForwardConfig {
    /// The width of the input and the output.
    pub d_model: usize,
    /// The width of the hidden layer.
    pub d_ff: usize,
    /// The activation function.
    pub activation: Activation,
    /// An xIELU in place of the activation function.
    #[serde(default)]
    pub xielu: Option<XieluConfig>,
    /// Plain or gated.
    pub form: FeedForwardForm,
    /// Bounds for `gate` and `up` in a gated unit.
    #[serde(default)]
    pub clamp: Option<GateClamp>,
    /// The factor on the gate, before the activation function (Falcon-H1).
    #[serde(default = "super::one")]
    pub gate_multiplier: f64,
    /// The factor on the output of `down` (Falcon-H1).
    #[serde(default = "super::one")]
    pub output_multiplier: f64,
    /// The share of gate outputs that become 0 before the activation function, for normally distributed outputs:
    /// `max(gate - mean - z · deviation, 0)` over each row, with the quantile `z` for the share (Gemma 3n).
    #[serde(default)]
    pub sparsity: Option<f64>,
    /// The norm over the hidden activations, before `down` (Sub-LayerNorm, Wang et al. 2022,
    /// <https://arxiv.org/abs/2210.06423>; KOSMOS-2, BitNet). `d_ff` sets its width. Experts have none.
    #[serde(default)]
    pub sub_norm: Option<NormConfig>,
    /// `up` (and `gate`) have a bias.
    pub up_bias: bool,
    /// `down` has a bias.
    pub down_bias: bool,
    /// The dropout probability for hidden activations, after the activation function.
    pub dropout: f64,
    /// The mixture of experts, each with this configuration. `None` for a single network.
    pub experts: Option<ExpertsConfig>,
}

/// The function from router logits to expert scores.
/// Set it in [`RoutingConfig::scores`](crate::config::RoutingConfig::scores).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RoutingScores {
    /// Softmax over all experts (Mixtral).
    Softmax,
    /// Sigmoid (DeepSeek-V3).
    Sigmoid,
    /// Identity.
    Logits,
}

/// The function from the chosen experts' scores to the weights of their outputs.
/// Set it in [`RoutingConfig::weights`](crate::config::RoutingConfig::weights).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoutingWeights {
    /// The scores are the weights.
    Scores,
    /// The scores are divided by their sum, so that the weights add up to 1.
    Renormalized,
    /// The router chooses one expert after another (sparse mixer, Liu et al. 2024,
    /// <https://arxiv.org/abs/2409.12136>; transformers' `sparsemixer`). An expert's weight is its share in the
    /// softmax over the experts not chosen before it and with a score `s` close to the best score `b`: `(b - s) /
    /// max(|s|, b) <= tolerance`. In training each expert is drawn from that softmax; if it is not the best one, its
    /// weight counts a third in three out of four cases, but not in its gradient. Requires
    /// [`RoutingScores::Logits`].
    AmongNear {
        /// The largest relative difference to the best score.
        tolerance: f64,
    },
}

/// Experts in groups with equal sizes. Only experts in the best groups can be chosen (DeepSeek-V2 and V3).
/// Set them in [`RoutingConfig::groups`](crate::config::RoutingConfig::groups).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpertGroups {
    /// The number of groups, a divisor of the number of experts.
    pub n_groups: usize,
    /// The number of groups to choose per position.
    pub top_groups: usize,
    /// The number of largest scores whose sum ranks a group.
    pub judged_by: usize,
}

impl ExpertGroups {
    /// Returns `n_groups` groups, of which `top_groups` are kept by their `judged_by` best experts.
    #[must_use]
    pub fn new(n_groups: usize, top_groups: usize, judged_by: usize) -> Self {
        Self {
            n_groups,
            top_groups,
            judged_by,
        }
    }
}

/// The choice of experts for each position, and their weights.
/// Set it in [`ExpertsConfig::routing`](crate::ExpertsConfig::routing).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoutingConfig {
    /// The number of experts per position.
    pub top_k: usize,
    /// The function from router logits to scores.
    pub scores: RoutingScores,
    /// The function from the chosen experts' scores to weights.
    pub weights: RoutingWeights,
    /// The factor on the weights.
    pub scale: f64,
    /// Added to the sum by which [`RoutingWeights::Renormalized`] divides sigmoids (1e-20 in DeepSeek V3, 1e-6 in LFM2).
    #[serde(default)]
    pub epsilon: f64,
    /// The expert groups, chosen before the experts.
    pub groups: Option<ExpertGroups>,
}

/// The operand that is multiplied by a chosen expert's weight.
/// Set it in [`ExpertsConfig::weighted`](crate::ExpertsConfig::weighted).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExpertWeighting {
    /// The expert's output.
    #[default]
    Outputs,
    /// The expert's input (Llama 4).
    Inputs,
}

/// The layers around the chosen experts of a mixture. Set them in
/// [`ExpertsConfig::branch`](crate::ExpertsConfig::branch).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExpertBranch {
    /// Nothing: they read the mixture's input.
    #[default]
    Plain,
    /// Two projections, between which the experts read and write rows of another width (Nemotron 3). Router and shared
    /// expert read the whole width.
    Latent {
        /// The width.
        width: usize,
    },
    /// Norms of the router's input, and of input and output of the chosen experts and of the shared expert (Gemma 4).
    /// The router's logits are divided by the root of the width. A learned factor multiplies each expert's weight.
    Normalized {
        /// The configuration of all these norms.
        norm: NormConfig,
    },
}

/// A shared expert for all positions, with the same form as the others.
/// Set it in [`ExpertsConfig::shared`](crate::ExpertsConfig::shared).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedExpertConfig {
    /// The hidden width.
    pub d_ff: usize,
    /// Multiplies the output by a gate's sigmoid.
    pub gate: bool,
}

impl SharedExpertConfig {
    /// Returns a shared expert with `d_ff` hidden activations, with or without a gate.
    #[must_use]
    pub fn new(d_ff: usize, gate: bool) -> Self {
        Self { d_ff, gate }
    }
}

/// The configuration of a mixture of experts in place of a single feed-forward (Shazeer et al. 2017,
/// <https://arxiv.org/abs/1701.06538>). Each expert has the feed-forward's sizes.
/// Set it in [`FeedForwardConfig::experts`](crate::FeedForwardConfig::experts).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[must_use]
#[non_exhaustive]
pub struct ExpertsConfig {
    /// The number of experts.
    pub n_experts: usize,
    /// The choice of experts for each position.
    pub routing: RoutingConfig,
    /// The router has a bias.
    #[serde(default)]
    pub router_bias: bool,
    /// Adds a bias to each expert's score for the choice only, which balances the load and has no gradient (Wang et
    /// al. 2024, <https://arxiv.org/abs/2408.15664>).
    pub correction: bool,
    /// The operand that is multiplied by the weights.
    #[serde(default)]
    pub weighted: ExpertWeighting,
    /// The shared expert.
    pub shared: Option<SharedExpertConfig>,
    /// Adds a bias to the sum of the experts' outputs, the same for every choice (Nomic).
    #[serde(default)]
    pub output_bias: bool,
    /// The layers around the chosen experts.
    #[serde(default)]
    pub branch: ExpertBranch,
}

impl RoutingConfig {
    /// Returns a routing to `top_k` experts per position, weighted by the softmax over all experts.
    pub fn new(top_k: usize) -> Self {
        Self {
            top_k,
            scores: RoutingScores::Softmax,
            weights: RoutingWeights::Scores,
            scale: 1.0,
            epsilon: 0.0,
            groups: None,
        }
    }

    /// Like [`Self::new`], with weights that add up to 1.
    pub fn renormalized(top_k: usize) -> Self {
        Self {
            weights: RoutingWeights::Renormalized,
            ..Self::new(top_k)
        }
    }

    /// # Errors
    /// If the settings do not fit `n_experts`.
    pub(crate) fn check(&self, n_experts: usize) -> Result<()> {
        let fail = |reason: String| Err(Error::InvalidConfig(reason));
        let top_k = self.top_k;
        if top_k == 0 || top_k > n_experts {
            return fail(format!("each position uses {top_k} of {n_experts} experts"));
        }
        finite("the factor on the weights of experts", self.scale)?;
        let divides =
            self.weights == RoutingWeights::Renormalized && self.scores == RoutingScores::Sigmoid;
        if !(0.0..1.0).contains(&self.epsilon) || (self.epsilon > 0.0 && !divides) {
            return fail(format!(
                "{} is added to the sum of weights; expected 0 <= epsilon < 1, and 0 unless sigmoids are renormalized",
                self.epsilon
            ));
        }
        let is_drawn = matches!(self.weights, RoutingWeights::AmongNear { .. });
        if is_drawn != (self.scores == RoutingScores::Logits) {
            return fail(format!(
                "weights {:?} with scores {:?}; expected AmongNear with Logits, or neither",
                self.weights, self.scores
            ));
        }
        if let RoutingWeights::AmongNear { tolerance } = self.weights {
            finite("the tolerance for scores near the best", tolerance)?;
            if self.groups.is_some() {
                return fail("experts chosen one after another cannot be in groups".to_string());
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
                "groups of {size} experts are ranked by {judged_by} scores"
            ));
        }
        Ok(())
    }
}

impl ExpertsConfig {
    /// Returns a mixture without a shared expert.
    pub fn new(n_experts: usize, routing: RoutingConfig) -> Self {
        Self {
            n_experts,
            routing,
            router_bias: false,
            correction: false,
            weighted: ExpertWeighting::Outputs,
            shared: None,
            output_bias: false,
            branch: ExpertBranch::Plain,
        }
    }

    setters! {
        /// Sets whether the router has a bias.
        with_router_bias(bias: bool) => router_bias = bias;
        /// Sets whether each expert has a score bias for the choice.
        with_correction(correction: bool) => correction = correction;
        /// Sets the operand that is multiplied by the experts' weights.
        with_weighted(weighted: ExpertWeighting) => weighted = weighted;
        /// Sets the shared expert, or removes it.
        with_shared(shared: Option<SharedExpertConfig>) => shared = shared;
        /// Sets whether the sum of the experts' outputs has a bias.
        with_output_bias(bias: bool) => output_bias = bias;
        /// Sets the layers around the chosen experts.
        with_branch(branch: ExpertBranch) => branch = branch;
    }
}

impl FeedForwardConfig {
    /// Returns a plain feed-forward, `down(gelu(up(x)))`, with biases, `d_ff = 4 * d_model` and no dropout.
    pub fn new(d_model: usize) -> Self {
        Self {
            d_model,
            d_ff: d_model.saturating_mul(4),
            activation: Activation::Gelu,
            xielu: None,
            form: FeedForwardForm::Plain,
            clamp: None,
            gate_multiplier: 1.0,
            output_multiplier: 1.0,
            sparsity: None,
            sub_norm: None,
            up_bias: true,
            down_bias: true,
            dropout: 0.0,
            experts: None,
        }
    }

    /// Returns no feed-forward, for a block that is a mixer alone.
    pub fn absent(d_model: usize) -> Self {
        Self {
            d_ff: 0,
            form: FeedForwardForm::Absent,
            ..Self::new(d_model).with_bias(false)
        }
    }

    setters! {
        /// Sets the hidden width.
        with_d_ff(d_ff: usize) => d_ff = d_ff;
        /// Sets the activation function.
        with_activation(activation: Activation) => activation = activation;
        /// Puts an xIELU in place of the activation function, or removes it.
        with_xielu(xielu: Option<XieluConfig>) => xielu = xielu;
        /// Sets a plain or gated form.
        with_form(form: FeedForwardForm) => form = form;
        /// Sets bounds for `gate` and `up`, or removes them.
        with_clamp(clamp: Option<GateClamp>) => clamp = clamp;
        /// Sets the factor on the gate.
        with_gate_multiplier(factor: f64) => gate_multiplier = factor;
        /// Sets the factor on the output.
        with_output_multiplier(factor: f64) => output_multiplier = factor;
        /// Sets the share of gate outputs that become 0, or removes it.
        with_sparsity(sparsity: Option<f64>) => sparsity = sparsity;
        /// Sets the norm before `down`, or removes it.
        with_sub_norm(norm: Option<NormConfig>) => sub_norm = norm;
        /// Sets the dropout probability for hidden activations.
        with_dropout(p: f64) => dropout = p;
        /// Sets a mixture of experts, or a single network.
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
    /// [`Error::InvalidConfig`] names the wrong setting and says what is expected.
    pub fn validate(&self) -> Result<()> {
        size("d_model", self.d_model)?;
        if self.form == FeedForwardForm::Absent {
            return match (self.d_ff, self.experts) {
                (0, None) => Ok(()),
                _ => Err(Error::InvalidConfig(
                    "an absent feed-forward has a width or experts; use FeedForwardConfig::absent"
                        .to_string(),
                )),
            };
        }
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
        let multipliers = [self.gate_multiplier, self.output_multiplier];
        if multipliers != [1.0; 2] {
            let is_gate_alone = self.form == FeedForwardForm::Gated
                && self.xielu.is_none()
                && self.sparsity.is_none()
                && self.experts.is_none();
            if !is_gate_alone {
                let reason = "multipliers of gate and output require a gated form without xIELU, sparsity or experts";
                return Err(Error::InvalidConfig(reason.to_string()));
            }
            finite("the gate's multiplier", self.gate_multiplier)?;
            finite("the output's multiplier", self.output_multiplier)?;
        }
        if let Some(sparsity) = self.sparsity {
            if self.form == FeedForwardForm::Plain || self.clamp.is_some() {
                let reason = "sparsity requires a gate without a clamp; set `form` to gated, and remove the clamp";
                return Err(Error::InvalidConfig(reason.to_string()));
            }
            positive("sparsity", sparsity)?;
            probability("sparsity", sparsity)?;
        }
        if let Some(xielu) = self.xielu {
            xielu.validate()?;
        }
        if let Some(sub_norm) = &self.sub_norm {
            sub_norm.validate_eps()?;
            if self.experts.is_some() {
                let reason = "experts have no norm before `down`; remove `sub_norm` or `experts`";
                return Err(Error::InvalidConfig(reason.to_string()));
            }
        }
        if let Some(experts) = &self.experts {
            experts.routing.check(experts.n_experts)?;
            if experts.correction && experts.routing.scores == RoutingScores::Logits {
                let reason = "experts chosen one after another cannot have a score correction";
                return Err(Error::InvalidConfig(reason.to_string()));
            }
            size("n_experts", experts.n_experts)?;
            if let Some(shared) = experts.shared {
                size("the shared expert's d_ff", shared.d_ff)?;
            }
            let own_shared = experts.shared.is_some_and(|shared| !shared.gate);
            let fits = match experts.branch {
                ExpertBranch::Plain => true,
                ExpertBranch::Latent { width } => {
                    size("the latent width of experts", width)?;
                    !experts.output_bias
                }
                ExpertBranch::Normalized { norm } => {
                    norm.validate()?;
                    own_shared && !experts.output_bias && norm.d_model == self.d_model
                }
            };
            if !fits {
                let reason = format!(
                    "experts with the branch {:?} have no bias on their sum; with norms these have the width {}, and there is a \
                     shared expert without a gate",
                    experts.branch, self.d_model
                );
                return Err(Error::InvalidConfig(reason));
            }
        }
        probability("feed-forward dropout", self.dropout)
    }
}
