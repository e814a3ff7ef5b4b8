//! Selecting named parameters and putting them into groups.

use crate::{Error, Result, checkpoint::Parameters, config::matches};

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
/// If a pattern matches no parameter, since it would otherwise silently have no effect.
pub fn split(parameters: Parameters, patterns: &[&str]) -> Result<(Parameters, Parameters)> {
    for pattern in patterns {
        if !parameters.iter().any(|(role, _)| matches(pattern, role)) {
            let roles = parameters.iter().map(|(role, _)| role.as_str());
            let roles: Vec<&str> = roles.take(3).collect();
            let reason = format!(
                "the pattern matches none of {} parameters; their names are like {}",
                parameters.len(),
                roles.join(", ")
            );
            return Err(Error::input(*pattern, reason));
        }
    }
    let is_matched = |(role, _): &(String, _)| patterns.iter().any(|p| matches(p, role));
    Ok(parameters.into_iter().partition(is_matched))
}

/// A group of parameters with common hyperparameters.
#[derive(Clone, Debug)]
#[must_use]
pub struct ParameterGroup {
    /// The parameters with their roles.
    pub parameters: Parameters,
    /// The weight decay: each step subtracts this fraction, times the learning rate, of each parameter.
    pub weight_decay: f64,
    /// Factor on the learning rate of the optimiser.
    pub learning_rate_scale: f64,
}

impl ParameterGroup {
    /// A group with the given weight decay and the learning rate of the optimiser.
    pub fn new(parameters: Parameters, weight_decay: f64) -> Self {
        Self {
            parameters,
            weight_decay,
            learning_rate_scale: 1.0,
        }
    }

    /// Sets the factor on the learning rate of the optimiser.
    pub fn with_learning_rate_scale(mut self, factor: f64) -> Self {
        self.learning_rate_scale = factor;
        self
    }

    /// Makes two groups: matrices with the given weight decay, and vectors (norms, biases, layer scales) without.
    pub fn decaying_matrices(parameters: Parameters, weight_decay: f64) -> Vec<Self> {
        let (matrices, vectors) = parameters
            .into_iter()
            .partition(|(_, variable)| variable.rank() >= 2);
        let groups = [Self::new(matrices, weight_decay), Self::new(vectors, 0.0)];
        let is_used = |group: &Self| !group.parameters.is_empty();
        groups.into_iter().filter(is_used).collect()
    }
}
