//! The backward pass of a tape: its steps in reverse.

use std::sync::Arc;

use candle_blocks_kernels::rows::{column_sums, elements};
use candle_blocks_kernels::{Cpu, Slice, SliceMut};
use candle_core::{Result, Tensor, bail};

use super::cpu::{cpu, with_team};
use super::tape::{Data, Slot, Step};
use super::{gradients::handed_over, graph::Backward, numbers::Numbers};

/// A tape that ended in one value.
pub(super) struct Finished {
    /// Places of values and inputs.
    pub n_places: usize,
    /// The place of the value that it ended in.
    pub output: usize,
    /// Tensors that ask for gradients, and their places.
    pub inputs: Vec<(usize, Tensor)>,
    /// The steps, with the places of the values that they made.
    pub steps: Vec<(usize, Arc<Step>)>,
}

/// A backward pass under way: the gradients found so far.
pub(crate) struct Pass {
    pub cpu: Cpu,
    /// By place.
    gradients: Vec<Option<Numbers>>,
}

impl Backward for Finished {
    fn backward(&self, cotangent: &Tensor) -> Result<Vec<Option<Tensor>>> {
        if cotangent.track_op() {
            bail!("second derivatives are not supported; unset CANDLE_GRAD_DO_NOT_DETACH")
        }
        let dy = Data::Tensor(cotangent.contiguous()?);
        let mut pass = Pass {
            cpu: cpu()?,
            gradients: (0..self.n_places).map(|_| None).collect(),
        };
        pass.gradients[self.output] = Some(Numbers::copied(dy.read().slice()));
        with_team(|| {
            for (place, step) in self.steps.iter().rev() {
                if let Some(dy) = pass.gradients[*place].take() {
                    step(&mut pass, dy)?;
                }
            }
            Ok::<(), candle_core::Error>(())
        })?;
        let gradient = |(place, tensor): &(usize, Tensor)| match pass.gradients[*place].take() {
            Some(gradient) => handed_over(gradient, tensor),
            None => Ok(None),
        };
        self.inputs.iter().map(gradient).collect()
    }
}

impl Pass {
    /// Adds to the gradient of a value, if something asks for it.
    pub fn add(&mut self, slot: &Slot, gradient: Numbers) -> Result<()> {
        let Some(place) = slot.place else {
            return Ok(());
        };
        let known = &mut self.gradients[place];
        match known {
            None if slot.is_whole() => *known = Some(gradient),
            Some(sum) if slot.is_whole() => {
                elements::add(self.cpu, sum.slice_mut(), gradient.slice());
            }
            known => {
                let rows = gradient.len() / slot.columns.len().max(1);
                if known.is_none() {
                    *known = Some(Numbers::zeros(gradient.dtype(), rows * slot.width)?);
                }
                if let Some(sum) = known {
                    add_columns(sum, slot, &gradient);
                }
            }
        }
        Ok(())
    }

    /// Adds to the gradient of a parameter, if it asks for one.
    pub fn add_parameter(&mut self, place: Option<usize>, gradient: Numbers) -> Result<()> {
        self.add(&Slot::whole(place, gradient.len()), gradient)
    }

    /// Adds the sums of columns, of which there are `width`, to the gradient of a vector, if it asks for one.
    pub fn add_column_sums(
        &mut self,
        of: Option<usize>,
        rows: &Numbers,
        width: usize,
    ) -> Result<()> {
        if of.is_none() {
            return Ok(());
        }
        let mut sums = Numbers::new(rows.dtype(), width)?;
        column_sums(self.cpu, rows.slice(), sums.slice_mut());
        self.add_parameter(of, sums)
    }

    /// Takes the gradient found so far of a whole value: who adds to it while computing the next part puts back the sum.
    pub fn take(&mut self, slot: &Slot) -> Option<Numbers> {
        match slot.is_whole() {
            true => self.gradients[slot.place?].take(),
            false => None,
        }
    }
}

fn add_columns(sum: &mut Numbers, slot: &Slot, gradient: &Numbers) {
    fn add<T: Copy>(sum: &mut [T], slot: &Slot, gradient: &[T], plus: impl Fn(T, T) -> T) {
        let rows = gradient.chunks_exact(slot.columns.len().max(1));
        for (sum, gradient) in sum.chunks_exact_mut(slot.width).zip(rows) {
            for (sum, &gradient) in sum[slot.columns.clone()].iter_mut().zip(gradient) {
                *sum = plus(*sum, gradient);
            }
        }
    }
    match (sum.slice_mut(), gradient.slice()) {
        (SliceMut::F32(sum), Slice::F32(gradient)) => add(sum, slot, gradient, |a, b| a + b),
        (SliceMut::F64(sum), Slice::F64(gradient)) => add(sum, slot, gradient, |a, b| a + b),
        (SliceMut::F16(sum), Slice::F16(gradient)) => add(sum, slot, gradient, |a, b| a + b),
        (SliceMut::Bf16(sum), Slice::Bf16(gradient)) => add(sum, slot, gradient, |a, b| a + b),
        _ => unreachable!("gradients have the type of their value"),
    }
}
