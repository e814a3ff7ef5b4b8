//! The backward pass over a tape: its steps in reverse.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{Result, Tensor, bail};

use super::engine::Engine;
use super::gradients::{is_collecting, stopped_by};
use super::graph::Backward;
use super::ranks::Ranks;
use super::slot::Slot;
use super::versions::{CHANGED, Version};

/// The backward pass for one step: adds the inputs' gradients to the pass, given the result's gradient.
pub(crate) type Step<E> =
    dyn Fn(&mut BackwardPass<E>, <E as Engine>::Output) -> Result<()> + Send + Sync;

/// A step, with its result's place and dimensions.
pub(crate) type Made<E> = (usize, Vec<usize>, Arc<Step<E>>);

/// A finished tape.
#[doc(hidden)]
pub struct Finished<E: Engine> {
    /// The place of the tape's output, the last place.
    pub output: usize,
    /// Tensors that require gradients, and their places.
    pub inputs: Vec<(usize, Tensor)>,
    /// Tensors that the steps read again, as the forward pass found them.
    pub reads: Vec<(Tensor, Version)>,
    pub steps: Mutex<Option<Vec<Made<E>>>>,
    /// The ranks that computed the steps together, if any.
    pub ranks: Option<Arc<Ranks>>,
}

impl<E: Engine> Finished<E> {
    /// Returns the steps. While gradients are collected the steps are moved out, so that a step's saved values are
    /// freed when it is done.
    fn steps(&self) -> Result<Vec<Made<E>>> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if steps.is_some() {
            self.check_versions()?;
        }
        let steps = match is_collecting() {
            true => steps.take(),
            false => steps.clone(),
        };
        let Some(steps) = steps else {
            bail!(
                "a second backward pass for one loss, whose activations the first pass has freed; use candle's loss.backward() for both"
            )
        };
        Ok(steps)
    }

    /// # Errors
    /// If a tensor that the steps read has changed since the forward pass.
    fn check_versions(&self) -> Result<()> {
        let mut reads = self.reads.iter();
        let Some((tensor, _)) = reads.find(|(tensor, version)| !version.is_current(tensor)) else {
            return Ok(());
        };
        stopped_by(tensor);
        let (dtype, dims) = (tensor.dtype(), tensor.dims());
        bail!("a variable of {dtype:?} {dims:?}: {CHANGED}")
    }
}

/// A running backward pass, with the gradients so far.
#[doc(hidden)]
pub struct BackwardPass<E: Engine> {
    pub engine: E,
    /// Gradients by place.
    gradients: Vec<Option<E::Sum>>,
}

impl<E: Engine> Backward for Finished<E> {
    fn backward(&self, cotangent: &Tensor) -> Result<Vec<Option<Tensor>>> {
        if cotangent.track_op() {
            bail!("second derivatives are not supported; unset CANDLE_GRAD_DO_NOT_DETACH")
        }
        let mut pass = BackwardPass {
            engine: E::new()?,
            gradients: (0..=self.output).map(|_| None).collect(),
        };
        let width = cotangent.dims().last().copied().unwrap_or(1);
        let output = Slot::whole(Some(self.output), width);
        pass.add(&output, E::cotangent(cotangent)?)?;
        E::working(|| {
            let mut steps = self.steps()?;
            while let Some((place, dims, step)) = steps.pop() {
                if let Some(sum) = pass.gradients[place].take() {
                    step(&mut pass, E::total(sum, &dims)?)?;
                }
            }
            Ok::<(), candle_core::Error>(())
        })?;
        let gradient = |(place, tensor): &(usize, Tensor)| {
            let Some(sum) = pass.gradients[*place].take() else {
                return Ok(None);
            };
            let found = E::total(sum, tensor.dims())?;
            let whole = match &self.ranks {
                Some(ranks) => ranks.whole::<E>(found, tensor.id(), tensor.dims())?,
                None => found,
            };
            E::handed_over(whole, tensor)
        };
        self.inputs.iter().map(gradient).collect()
    }
}

impl<E: Engine> BackwardPass<E> {
    /// Adds to a value's gradient, if it is required.
    pub fn add(&mut self, slot: &Slot, gradient: E::Output) -> Result<()> {
        match slot.place {
            Some(place) => self.engine.add(&mut self.gradients[place], slot, gradient),
            None => Ok(()),
        }
    }

    /// Returns the gradient so far for the value at a place.
    pub fn sum(&mut self, place: usize) -> &mut Option<E::Sum> {
        &mut self.gradients[place]
    }

    /// Takes the gradient so far for a whole value. A caller that adds to it while computing must put back the sum.
    pub fn take(&mut self, slot: &Slot) -> Option<E::Sum> {
        match slot.is_whole() {
            true => self.gradients[slot.place?].take(),
            false => None,
        }
    }
}
