//! Gradients of named parameters: accumulated, scaled, clipped.

use std::sync::OnceLock;

use candle_core::{Tensor, Var, backprop::GradStore};

use crate::checkpoint::{ByRole, TensorParallel};
use crate::error::{Error, Result};
use crate::ops;
use crate::ops::{Collected, RankOf, parallel::sum_in_f64};

/// Gradients for named parameters, in the parameters' order.
///
/// ```
/// use candle_blocks::train::Gradients;
/// use candle_core::{Device, Var};
/// let weight = Var::new(&[3f64, 4.], &Device::Cpu)?;
/// let parameters = vec![("weight".to_string(), weight.clone())];
/// // Two micro-batches of 3 targets and 1 are one batch of 4: each mean counts by its number of targets.
/// let mut mean = Gradients::default();
/// for (n_targets, factor) in [(3, 1.0), (1, 5.0)] {
///     let loss = (weight.sqr()?.sum_all()? * (0.5 * factor))?; // its gradient is `factor` times the weight
///     mean.accumulate_mean(Gradients::backward(&parameters, &loss)?, n_targets)?;
/// }
/// assert_eq!(mean.get("weight")?.unwrap().to_vec1::<f64>()?, [6.0, 8.0]); // (3 · 1 + 1 · 5) / 4 times the weight
/// assert_eq!(mean.clip_norm(1.0)?, 10.0);
/// let clipped = mean.get("weight")?.unwrap().to_vec1::<f64>()?;
/// assert!((clipped[0] - 0.6).abs() < 1e-6);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Gradients {
    by_role: ByRole<Collected>,
    /// A factor for every gradient, which the optimizer applies.
    scale: f64,
    /// The norm before `scale`, once known. With a `rank`, the norm over all ranks.
    norm: OnceLock<f64>,
    mean: MeanOver,
    /// The rank whose parts of parameters have these gradients. `None` if no parameter is divided.
    rank: Option<RankOf>,
}

/// The number of targets over which gradients are a mean.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MeanOver {
    /// There are no gradients yet.
    Nothing,
    /// Nobody gave the number for a backward pass, or the gradients are a sum.
    Unknown,
    /// All targets of [`Gradients::accumulate_mean`].
    Targets(usize),
}

/// The value that torch's `clip_grad_norm_` adds to the norm before it divides.
const CLIP_EPS: f64 = 1e-6;

impl Default for Gradients {
    /// Makes an empty collection.
    fn default() -> Self {
        Self {
            by_role: ByRole::default(),
            scale: 1.0,
            norm: Default::default(),
            mean: MeanOver::Nothing,
            rank: None,
        }
    }
}

impl Gradients {
    /// Takes the given parameters' gradients from candle's `GradStore`, if the backward pass reached them.
    pub fn of(parameters: &[(String, Var)], store: &GradStore) -> Self {
        Self::collect(parameters, |variable| store.get(variable).cloned())
    }

    /// Runs the backward pass for `loss` and returns the given parameters' gradients, like `loss.backward()` followed by
    /// [`Self::of`], but faster, since gradients do not go through candle's store. The loss should be a scalar; candle
    /// takes the sum over several elements.
    ///
    /// Activations are freed as the pass uses them, as in PyTorch, so `loss` has no second backward pass.
    ///
    /// # Errors
    /// If the backward pass fails, or it is the second for this loss. As in PyTorch, also if a variable that the pass reads
    /// was modified in place after the forward pass, by an optimizer's update or `Var::set`; the message names it. Two
    /// changes are not found: by candle (`Var::set`, its optimizers) of a variable on a device, and by candle of a variable
    /// that only candle's own operations read.
    pub fn backward(parameters: &[(String, Var)], loss: &Tensor) -> Result<Self> {
        let changed = |tensor: &Tensor| {
            let mut named = parameters.iter();
            let named = named.find(|(_, variable)| ops::share_memory(variable, tensor));
            let name = named.map_or("a variable", |(role, _)| role);
            Error::input(name, ops::CHANGED)
        };
        let passed = ops::collecting(|| loss.backward());
        let (store, collected) = passed.map_err(|stopped| match &stopped.changed {
            Some(tensor) => changed(tensor),
            None => stopped.error.into(),
        })?;
        let is_candles = |variable: &Tensor| store.get(variable).is_some();
        if let Some(tensor) = ops::changed_after(loss, is_candles) {
            return Err(changed(&tensor));
        }
        let mut by_role = ByRole::default();
        for (role, variable) in parameters {
            // A variable may be used by our operations and by candle's own.
            let gradient = match (collected.get(&variable.id()), store.get(variable)) {
                (Some(ours), Some(candles)) => ours.plus(candles)?,
                (Some(ours), None) => ours.clone(),
                (None, Some(candles)) => Collected::plain(candles.detach()),
                (None, None) => continue,
            };
            by_role.push(role.clone(), gradient);
        }
        Ok(Self::of_pass(parameters, by_role))
    }

    /// Collects the given parameters' gradients that `find` returns.
    pub(super) fn collect(
        parameters: &[(String, Var)],
        find: impl Fn(&Var) -> Option<Tensor>,
    ) -> Self {
        let gradient = |(role, variable): &(String, Var)| {
            // Without its graph, which may hold the activations.
            Some((role.clone(), Collected::plain(find(variable)?.detach())))
        };
        Self::of_pass(parameters, parameters.iter().filter_map(gradient).collect())
    }

    /// Wraps the gradients of one backward pass.
    fn of_pass(parameters: &[(String, Var)], by_role: ByRole<Collected>) -> Self {
        Self {
            by_role,
            mean: MeanOver::Unknown,
            rank: ops::part_of(parameters.iter().map(|(_, variable)| variable)),
            ..Self::default()
        }
    }

    /// Returns a role's gradient, clipped and scaled; `None` if no backward pass reached it.
    ///
    /// # Errors
    /// If candle cannot scale it.
    pub fn get(&self, role: &str) -> Result<Option<Tensor>> {
        let found = self.by_role.find(role);
        let scaled = found.map(|gradient| gradient.scaled(self.scale));
        Ok(scaled.transpose()?)
    }

    /// Returns the roles that have a gradient.
    pub fn roles(&self) -> impl Iterator<Item = &str> {
        self.by_role.iter().map(|(role, _)| role.as_str())
    }

    /// Returns whether there are no gradients.
    pub fn is_empty(&self) -> bool {
        self.by_role.is_empty()
    }

    /// Adds the gradients of the next micro-batch, whose loss is the mean over `n_targets` targets. The result is the gradient
    /// for one large batch: the mean over all targets so far. For [`ops::cross_entropy`](crate::ops::cross_entropy),
    /// [`ops::n_targets`](crate::ops::n_targets) returns the number. A micro-batch without targets changes nothing.
    ///
    /// ```no_run
    /// # use candle_blocks::{ops, train::Gradients, candle_core::Tensor, Parameters};
    /// # fn step(batches: &[(Tensor, Tensor)], parameters: &Parameters) -> candle_blocks::Result<()> {
    /// let mut gradients = Gradients::default();
    /// for (logits, targets) in batches {
    ///     let loss = ops::cross_entropy(logits, targets)?;
    ///     let of_batch = Gradients::backward(parameters, &loss)?;
    ///     gradients.accumulate_mean(of_batch, ops::n_targets(targets)?)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Means of several workers are joined in the same way: `n_targets` is then the number of a worker's mean.
    ///
    /// # Errors
    /// If gradients were added in another way before, so that nobody knows their number of targets; if `other` is a mean
    /// over another number of targets; also the errors of [`Self::accumulate`]. In each case nothing has changed.
    pub fn accumulate_mean(&mut self, mut other: Self, n_targets: usize) -> Result<()> {
        if let MeanOver::Targets(known) = other.mean
            && known != n_targets
        {
            let reason = format!(
                "those to add are a mean over {known} targets, but {n_targets} are given; give {known}"
            );
            return Err(Error::input("gradients", reason));
        }
        if n_targets == 0 {
            return Ok(());
        }
        let before = match self.mean {
            MeanOver::Nothing => 0,
            MeanOver::Targets(before) => before,
            MeanOver::Unknown => {
                let reason = "the number of targets of the first ones is unknown, because they come from backward or \
                 accumulate; begin with Gradients::default(), and add every micro-batch by accumulate_mean";
                return Err(Error::input("gradients", reason));
            }
        };
        self.check_addition(&other)?;
        let all = before as f64 + n_targets as f64;
        self.scale(before as f64 / all);
        other.scale(n_targets as f64 / all);
        self.add(other)?;
        self.mean = MeanOver::Targets(before.saturating_add(n_targets));
        Ok(())
    }

    /// Adds the gradients from another backward pass. The sum over `n` micro-batches, scaled by `1 / n`, equals the gradient
    /// for one large batch only if all have the same number of targets; otherwise use [`Self::accumulate_mean`].
    ///
    /// # Errors
    /// If a role has gradients of different shapes or dtypes, or the gradients are those of two ranks, which have different
    /// parts of each parameter. In each case nothing has changed.
    pub fn accumulate(&mut self, other: Self) -> Result<()> {
        self.check_addition(&other)?;
        let mean = match (self.mean, other.mean) {
            (MeanOver::Nothing, mean) | (mean, MeanOver::Nothing) => mean,
            _ => MeanOver::Unknown,
        };
        self.add(other)?;
        self.mean = mean;
        Ok(())
    }

    /// # Errors
    /// If other gradients cannot be added to these.
    fn check_addition(&self, other: &Self) -> Result<()> {
        if let (Some(own), Some(rank)) = (self.rank, other.rank)
            && own != rank
        {
            let reason = format!(
                "they are those of {own} and of {rank}, which have different parts of each parameter; add up each rank's \
                 own gradients"
            );
            return Err(Error::input("gradients", reason));
        }
        for (role, gradient) in &other.by_role {
            let Some(own) = self.by_role.find(role) else {
                continue;
            };
            let (own, gradient) = (own.tensor(), gradient.tensor());
            if own.dims() != gradient.dims() || own.dtype() != gradient.dtype() {
                let reason = format!(
                    "its gradients to add up are {:?} {:?} and {:?} {:?}; take them from one model",
                    own.dtype(),
                    own.dims(),
                    gradient.dtype(),
                    gradient.dims()
                );
                return Err(Error::input(role, reason));
            }
        }
        Ok(())
    }

    /// Adds gradients that [`Self::check_addition`] has checked.
    fn add(&mut self, other: Self) -> Result<()> {
        self.norm.take();
        self.rank = self.rank.or(other.rank);
        if self.scale == 0.0 {
            // What is there counts for nothing, and nothing can be divided by the factor.
            self.by_role = std::mem::take(&mut self.by_role)
                .into_iter()
                .map(|(role, gradient)| {
                    Ok((role, Collected::plain(gradient.tensor().zeros_like()?)))
                })
                .collect::<Result<_>>()?;
            self.scale = 1.0;
        }
        let (scale, factor) = (other.scale, self.scale);
        for (role, gradient) in other.by_role {
            // Bits stay those of a plain sum where nobody scaled.
            let gradient = match scale == factor {
                true => gradient,
                false => Collected::plain(gradient.scaled(scale / factor)?),
            };
            match self.by_role.find_mut(&role) {
                Some(sum) => *sum = sum.plus(gradient.tensor())?,
                None => self.by_role.push(role, gradient),
            }
        }
        Ok(())
    }

    /// Multiplies every gradient by `factor`.
    pub fn scale(&mut self, factor: f64) {
        self.scale *= factor;
    }

    /// Returns the global norm over all gradients, `√Σ g²`: summed in f64 on the CPU, elsewhere in their dtype and at least
    /// f32, with one transfer.
    ///
    /// # Errors
    /// If a gradient contains NaN or infinity, where the message names the first such parameter, or the scale does. If the
    /// gradients are one rank's part of a [`TensorParallel`] model, call [`Self::norm_among`] first.
    pub fn norm(&self) -> Result<f64> {
        if let (Some(rank), None) = (self.rank, self.norm.get()) {
            let reason = format!(
                "they are those of {rank} alone, and each rank would find and clip to another norm; call \
                 Gradients::norm_among(&parallel) on every rank first"
            );
            return Err(Error::input("gradients", reason));
        }
        let norm = self.checked_norm()?;
        Ok(self.norm.get_or_init(|| norm) * self.scale.abs())
    }

    /// Returns the norm before the common factor, which is that of one rank's gradients before [`Self::norm_among`].
    ///
    /// # Errors
    /// If a gradient or the scale contains NaN or infinity.
    pub(super) fn checked_norm(&self) -> Result<f64> {
        if !self.scale.is_finite() {
            let reason = format!(
                "they are scaled by {}, expected a finite number",
                self.scale
            );
            return Err(Error::input("gradients", reason));
        }
        if let Some(known) = self.norm.get() {
            return Ok(*known);
        }
        let all: Vec<&Tensor> = self.by_role.iter().map(|(_, g)| g.tensor()).collect();
        let squares = ops::sum_of_squares(&all)?;
        if !squares.is_finite() {
            for (role, gradient) in &self.by_role {
                if !ops::sum_of_squares(&[gradient.tensor()])?.is_finite() {
                    let reason = "its gradient contains NaN or infinity; lower the learning rate, \
                     clip, or skip this batch";
                    return Err(Error::input(role, reason));
                }
            }
        }
        Ok(squares.sqrt())
    }

    /// Returns the norm over all ranks' gradients, which [`Self::norm`] and [`Self::clip_norm`] then also use. Call it after
    /// the last accumulation, and before clipping and the optimizer's update. The ranks' sums are added in f64.
    ///
    /// # Errors
    /// The errors of [`Self::norm`], on every rank; also if the ranks cannot be reached.
    pub fn norm_among(&mut self, parallel: &TensorParallel) -> Result<f64> {
        let mut squares = 0.0;
        for (role, gradient) in &self.by_role {
            let n_owners = parallel.n_holders(role, gradient.tensor());
            squares += ops::sum_of_squares(&[gradient.tensor()])? / n_owners as f64;
        }
        let sum = sum_in_f64(parallel.communicator().as_ref(), squares)?;
        if !sum.is_finite() {
            let reason = "a gradient on some rank contains NaN or infinity; lower the learning \
             rate, clip, or skip this batch";
            return Err(Error::input("gradients", reason));
        }
        self.norm = OnceLock::from(sum.sqrt());
        self.norm()
    }

    /// Scales the gradients down to a global norm of at most `max_norm` and returns the norm before, like
    /// `torch.nn.utils.clip_grad_norm_(parameters, max_norm)`.
    ///
    /// # Errors
    /// The errors of [`Self::norm`]; also if `max_norm` is not positive.
    pub fn clip_norm(&mut self, max_norm: f64) -> Result<f64> {
        if max_norm.is_nan() || max_norm <= 0.0 {
            let reason = format!("it is {max_norm}, expected a positive number");
            return Err(Error::input("max_norm", reason));
        }
        let norm = self.norm()?;
        self.scale(f64::min(max_norm / (norm + CLIP_EPS), 1.0));
        Ok(norm)
    }

    /// Returns the rank whose parts of parameters have these gradients, if any parameter is divided.
    pub(super) fn rank(&self) -> Option<RankOf> {
        self.rank
    }

    /// Returns every gradient before the common factor, and the factor.
    pub(super) fn unscaled(&self) -> (&[(String, Collected)], f64) {
        (&self.by_role, self.scale)
    }
}
