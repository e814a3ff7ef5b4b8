//! The AdamW optimizer over groups of named parameters.

use std::collections::HashSet;

use candle_core::{DType, Device, Tensor, Var, backprop::GradStore};
use candle_nn::Optimizer;
use serde::{Deserialize, Serialize};

use crate::{
    checkpoint::Parameters,
    error::{Error, Result},
    ops::{self, MemoryKeeper, Moments, ParameterStep, RankOf, Update},
    train::{Gradients, ParameterGroup, parameters::NONE_TO_TRAIN},
};

/// The hyperparameters for [`AdamW`], except the weight decay, which belongs to the groups.
/// Pass them to [`AdamW::new`](crate::train::AdamW::new).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AdamWConfig {
    /// The learning rate.
    pub learning_rate: f64,
    /// The decay rate for the first moment, the gradient's running mean.
    pub beta1: f64,
    /// The decay rate for the second moment, the running mean of its square.
    pub beta2: f64,
    /// The value added to the square root of the second moment.
    pub eps: f64,
}

impl Default for AdamWConfig {
    /// Returns the defaults of `torch.optim.AdamW`: 1e-3, 0.9, 0.999, 1e-8.
    fn default() -> Self {
        Self {
            learning_rate: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
        }
    }
}

impl AdamWConfig {
    /// Returns the defaults with this learning rate.
    pub fn with_learning_rate(learning_rate: f64) -> Self {
        Self {
            learning_rate,
            ..Self::default()
        }
    }

    fn validate(&self) -> Result<()> {
        let is_beta = |beta: f64| (0.0..1.0).contains(&beta);
        let is_size = |size: f64| size.is_finite() && size >= 0.0;
        let fits = is_beta(self.beta1)
            && is_beta(self.beta2)
            && is_size(self.eps)
            && is_size(self.learning_rate);
        match fits {
            true => Ok(()),
            false => Err(Error::input(
                "AdamWConfig",
                format!(
                    "{self:?}, expected 0 <= beta < 1 and finite numbers that are not negative"
                ),
            )),
        }
    }
}

/// Adam with decoupled weight decay (Loshchilov and Hutter 2017, <https://arxiv.org/abs/1711.05101>): equals
/// `torch.optim.AdamW` up to rounding.
///
/// On the CPU, a step is one parallel pass over each parameter, its gradient and its two moments. On another device, all
/// parameters with the same group and dtype are updated together, and the host waits once, for the gradient norm. f16 and
/// bf16 parameters have f32 moments. A parameter without a gradient stays unchanged, and so does its step count.
///
/// The [module](crate::train) shows it in a loop.
#[derive(Debug)]
pub struct AdamW {
    pub(super) parameters: Parameters,
    /// The state for each parameter, in order.
    pub(super) states: Vec<ParameterState>,
    config: AdamWConfig,
    pub(super) n_updates: usize,
    /// The rank whose parts of parameters these are. `None` if no parameter is divided.
    pub(super) rank: Option<RankOf>,
    /// Keeps the memory that each training step reuses.
    _keeper: MemoryKeeper,
}

/// The optimizer state for a parameter.
#[derive(Debug)]
pub(super) struct ParameterState {
    pub moments: Moments,
    /// The number of updates.
    pub step: u64,
    weight_decay: f64,
    learning_rate_scale: f64,
}

impl AdamW {
    /// Makes an optimizer for the given groups of parameters.
    ///
    /// # Errors
    /// If there is no parameter at all, one is given twice (under one role or two) or is not of a floating-point dtype,
    /// or a hyperparameter is out of range.
    pub fn new(
        groups: impl IntoIterator<Item = ParameterGroup>,
        config: AdamWConfig,
    ) -> Result<Self> {
        config.validate()?;
        let (mut parameters, mut states) = (Parameters::default(), Vec::new());
        let mut variables = HashSet::new();
        for group in groups {
            let (decay, scale) = (group.weight_decay, group.learning_rate_scale);
            if !(decay.is_finite() && decay >= 0.0 && scale.is_finite() && scale >= 0.0) {
                let reason = format!(
                    "weight decay {decay} and learning rate scale {scale}; expected numbers that are not negative"
                );
                return Err(Error::input("ParameterGroup", reason));
            }
            for (role, variable) in group.parameters {
                if parameters.find(&role).is_some() || !variables.insert(variable.id()) {
                    let reason = "it is in the groups twice; give it once";
                    return Err(Error::input(role, reason));
                }
                if !matches!(
                    variable.dtype(),
                    DType::F16 | DType::BF16 | DType::F32 | DType::F64
                ) {
                    let reason = format!(
                        "{:?} cannot be trained, only floating-point types",
                        variable.dtype()
                    );
                    return Err(Error::input(role, reason));
                }
                states.push(ParameterState {
                    moments: Moments::zeros(ops::route(variable.device()), &variable)?,
                    step: 0,
                    weight_decay: group.weight_decay,
                    learning_rate_scale: group.learning_rate_scale,
                });
                parameters.push(role, variable);
            }
        }
        if parameters.is_empty() {
            return Err(Error::input("parameters", NONE_TO_TRAIN));
        }
        let rank = ops::part_of(parameters.iter().map(|(_, variable)| variable));
        Ok(Self {
            parameters,
            states,
            config,
            n_updates: 0,
            rank,
            _keeper: MemoryKeeper::default(),
        })
    }

    /// The hyperparameters.
    pub fn config(&self) -> &AdamWConfig {
        &self.config
    }

    /// The number of updates made so far.
    pub fn n_updates(&self) -> usize {
        self.n_updates
    }

    /// Returns the trained parameters with their roles.
    pub fn parameters(&self) -> Parameters {
        self.parameters.clone()
    }

    /// Runs the backward pass for `loss` and returns the parameters' gradients. A loss has only one such pass; see
    /// [`Gradients::backward`].
    ///
    /// # Errors
    /// If the backward pass fails, or it is the second for this loss.
    pub fn backward(&self, loss: &Tensor) -> Result<Gradients> {
        Gradients::backward(&self.parameters, loss)
    }

    /// Takes the parameters' gradients from candle's `GradStore`, after `loss.backward()`.
    pub fn gradients(&self, store: &GradStore) -> Gradients {
        Gradients::of(&self.parameters, store)
    }

    /// Updates every parameter that has a gradient by one step, with `factor` times the learning rate.
    ///
    /// The parameters change in place. A backward pass that reads them, of a loss that was computed before, is then refused,
    /// as in PyTorch: see [`Gradients::backward`].
    ///
    /// # Errors
    /// If a gradient contains NaN or infinity, there are no gradients, one belongs to a parameter that this optimizer
    /// does not train, to another rank's part of it, or has another shape or dtype, or the learning rate is negative, NaN or infinite. In each case no
    /// parameter has changed.
    pub fn update(&mut self, gradients: &Gradients, factor: f64) -> Result<()> {
        ops::with_team(|| self.update_all(gradients, factor))
    }

    fn update_all(&mut self, gradients: &Gradients, factor: f64) -> Result<()> {
        let learning_rate = self.config.learning_rate * factor;
        if !(learning_rate.is_finite() && learning_rate >= 0.0) {
            let set = self.config.learning_rate;
            let reason = format!(
                "it is {set} times a factor of {factor}, expected a finite number that is not negative"
            );
            return Err(Error::input("learning rate", reason));
        }
        if let (Some(rank), Some(own)) = (gradients.rank(), self.rank)
            && rank != own
        {
            let reason = format!(
                "they are those of {rank}, but the parameters are those of {own}; give each rank's optimizer its own"
            );
            return Err(Error::input("gradients", reason));
        }
        gradients.checked_norm()?; // NaN and infinity are found before anything moves
        let (by_role, gradient_scale) = gradients.unscaled();
        if by_role.is_empty() {
            let reason = "no trained parameter has one; does the loss depend on the layers, and was nothing detached?";
            return Err(Error::input("gradients", reason));
        }
        let mut given = vec![None; self.parameters.len()];
        for (role, gradient) in by_role {
            given[self.position_of(role, gradient.tensor())?] = Some(gradient.tensor());
        }
        let mut steps = Vec::with_capacity(by_role.len());
        let own = self.parameters.iter().zip(&mut self.states);
        for (((_, parameter), state), gradient) in own.zip(given) {
            let Some(gradient) = gradient else {
                state.moments.leave()?;
                continue;
            };
            state.step += 1;
            let update = Update {
                learning_rate: self.config.learning_rate * state.learning_rate_scale * factor,
                beta1: self.config.beta1,
                beta2: self.config.beta2,
                eps: self.config.eps,
                weight_decay: state.weight_decay,
                step: state.step,
                gradient_scale,
            };
            steps.push(ParameterStep {
                parameter,
                gradient,
                moments: &mut state.moments,
                update,
            });
        }
        ops::adamw(steps)?;
        self.n_updates += 1;
        Ok(())
    }

    /// Returns the index of a role's parameter, and checks that the gradient belongs to it.
    fn position_of(&self, role: &str, gradient: &Tensor) -> Result<usize> {
        let position = self.parameters.place(role).ok_or_else(|| {
            let reason = "its gradient is given, but no group of the optimizer contains it";
            Error::input(role, reason)
        })?;
        let (_, variable) = &self.parameters[position];
        if gradient.dims() != variable.dims() || gradient.dtype() != variable.dtype() {
            let reason = format!(
                "its gradient is {:?} {:?}, but it is {:?} {:?}; use gradients of this optimizer's parameters",
                gradient.dtype(),
                gradient.dims(),
                variable.dtype(),
                variable.dims()
            );
            return Err(Error::input(role, reason));
        }
        Ok(position)
    }
}

/// candle's optimizer interface: a single group without weight decay, with parameters named by position.
impl Optimizer for AdamW {
    type Config = AdamWConfig;

    fn new(variables: Vec<Var>, config: AdamWConfig) -> candle_core::Result<Self> {
        let named = variables.into_iter().enumerate();
        let parameters = named.map(|(i, variable)| (i.to_string(), variable));
        let group = ParameterGroup::new(parameters.collect::<Parameters>(), 0.0);
        Ok(AdamW::new([group], config)?)
    }

    fn step(&mut self, store: &GradStore) -> candle_core::Result<()> {
        Ok(self.update(&self.gradients(store), 1.0)?)
    }

    fn learning_rate(&self) -> f64 {
        self.config.learning_rate
    }

    fn set_learning_rate(&mut self, learning_rate: f64) {
        self.config.learning_rate = learning_rate;
    }
}

/// Returns a loss as a float.
///
/// # Errors
/// If it is not a scalar, or is NaN or infinite, so that no step should be taken.
pub fn loss_value(loss: &Tensor) -> Result<f64> {
    // On the CPU: Metal has no f64.
    let value = loss.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    let value = value.flatten_all()?.to_vec1::<f64>()?;
    match value[..] {
        [value] if value.is_finite() => Ok(value),
        [value] => {
            let reason =
                format!("it is {value}; lower the learning rate, or look for NaN in the batch");
            Err(Error::input("loss", reason))
        }
        _ => {
            let reason = format!("it has shape {:?}, expected a scalar", loss.dims());
            Err(Error::input("loss", reason))
        }
    }
}
