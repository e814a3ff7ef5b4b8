//! Selects named parameters and groups them.

use crate::checkpoint::Parameters;
use crate::error::{Error, Result, each_matches, matches};

/// The error for an empty list, which has no parameter to name.
pub(super) const NONE_TO_TRAIN: &str = "there is none to train; a loader lists the variables made \
 so far, so load the layers first (`loader.stack()`), with a loader from \
 `Checkpoint::trainable`, and freeze fewer";

/// Splits parameters into those whose role matches one of the patterns (`*` stands for any text), and the rest.
///
/// ```
/// use candle_blocks::train::split;
/// use candle_core::{DType, Device, Var};
/// let parameter = |role: &str| Ok((role.to_string(), Var::zeros(2, DType::F32, &Device::Cpu)?));
/// let all = ["blocks.0.attention.query.weight", "blocks.0.feed_forward.up.weight", "final_norm.weight"];
/// let all = all.into_iter().map(parameter).collect::<candle_core::Result<Vec<_>>>()?;
/// let (frozen, trained) = split(all, &["*attention*", "final_norm.*"])?;
/// assert_eq!((frozen.len(), trained.len()), (2, 1));
/// # Ok::<(), candle_blocks::Error>(())
/// ```
///
/// # Errors
/// If there are no parameters, or a pattern matches none of them, since it would otherwise silently have no effect.
pub fn split(
    parameters: impl Into<Parameters>,
    patterns: &[&str],
) -> Result<(Parameters, Parameters)> {
    let parameters = parameters.into();
    if parameters.is_empty() && !patterns.is_empty() {
        return Err(Error::input("parameters", NONE_TO_TRAIN));
    }
    each_matches(patterns, parameters.iter().map(|(role, _)| role.as_str()))?;
    let is_matched = |(role, _): &(String, _)| patterns.iter().any(|p| matches(p, role));
    Ok(parameters.into_iter().partition(is_matched))
}

/// A group of parameters with common hyperparameters. Pass it to [`AdamW::new`](crate::train::AdamW::new).
#[derive(Clone, Debug)]
#[must_use]
pub struct ParameterGroup {
    /// The parameters with their roles.
    pub parameters: Parameters,
    /// The weight decay: each step subtracts this fraction, times the learning rate, of each parameter.
    pub weight_decay: f64,
    /// A factor on the optimizer's learning rate.
    pub learning_rate_scale: f64,
}

impl ParameterGroup {
    /// Makes a group with the given weight decay and the optimizer's learning rate.
    pub fn new(parameters: impl Into<Parameters>, weight_decay: f64) -> Self {
        Self {
            parameters: parameters.into(),
            weight_decay,
            learning_rate_scale: 1.0,
        }
    }

    /// Sets the factor on the optimizer's learning rate.
    pub fn with_learning_rate_scale(mut self, factor: f64) -> Self {
        self.learning_rate_scale = factor;
        self
    }

    /// Makes two groups: matrices with the given weight decay, and vectors (norms, biases, layer scales) without.
    pub fn decaying_matrices(parameters: impl Into<Parameters>, weight_decay: f64) -> Vec<Self> {
        let (matrices, vectors): (Parameters, Parameters) = parameters
            .into()
            .into_iter()
            .partition(|(_, variable)| variable.rank() >= 2);
        let groups = [Self::new(matrices, weight_decay), Self::new(vectors, 0.0)];
        let is_used = |group: &Self| !group.parameters.is_empty();
        groups.into_iter().filter(is_used).collect()
    }
}
