//! Kernels over the sequences of a pass, from the states before it to those after it.

use std::sync::Arc;

use candle_blocks_kernels::recurrence::{StateKernel, States, n_snapshots};
use candle_blocks_kernels::{Cpu, Slice};
use candle_core::{Result, Tensor, bail};

use super::kernels::{Data, readable};
use super::numbers::Numbers;
use super::slot::Slot;
use super::tape::Taped;
use super::value::Value;

/// The sequences of a pass.
pub(crate) struct Sequences<'a> {
    /// The rows of each.
    pub rows: &'a Arc<Vec<Vec<u32>>>,
    /// Their states before the pass, `[batch, ..]`, which get no gradient; zeros without.
    pub before: Option<&'a Tensor>,
    /// Earlier states that nobody reads again, whose memory those after may take over.
    pub spare: Option<Tensor>,
}

/// Makes a kernel from its five inputs.
pub(super) trait WithInputs: Send + Sync + 'static {
    type Kernel<'a>: StateKernel;

    fn with<'a>(&'a self, inputs: [Slice<'a>; 5]) -> Self::Kernel<'a>;
}

fn with_inputs<K: WithInputs>(of: &K, inputs: &[(Data, Slot); 5], run: impl FnOnce(K::Kernel<'_>)) {
    let read = inputs.each_ref().map(|(data, _)| data.read());
    run(of.with(read.each_ref().map(|read| read.slice())));
}

impl Taped<Cpu> {
    /// Returns a kernel's result, which has the dimensions of `self`, and the states after, `dims`.
    pub(super) fn with_states(
        &self,
        kernel: impl WithInputs,
        inputs: [(Data, Slot); 5],
        sequences: &Sequences,
        dims: &[usize],
    ) -> Result<(Self, Tensor)> {
        let (dtype, engine) = (self.dtype(), self.engine());
        let asks = inputs.each_ref().map(|(_, slot)| slot.place);
        let state_len = dims[1..].iter().product::<usize>();
        let snapshots = || Numbers::new(dtype, n_snapshots(sequences.rows) * state_len);
        let is_tracked = asks.iter().any(Option::is_some);
        let mut snapshots = is_tracked.then(snapshots).transpose()?;
        let before = |of: &Tensor| readable(of.detach().contiguous()?);
        let before = sequences.before.map(before).transpose()?;
        let before = before.as_ref().map(Data::read);
        let len = dims[0] * state_len;
        let mut after = match &sequences.spare {
            Some(spare) => Numbers::in_place_of(spare, dtype, len)?,
            None => Numbers::new(dtype, len)?,
        };
        let mut y = Numbers::new(dtype, self.elem_count())?;
        let states = States {
            before: before.as_ref().map(|before| before.slice()),
            after: after.slice_mut(),
            snapshots: snapshots.as_mut().map(Numbers::slice_mut),
        };
        with_inputs(&kernel, &inputs, |kernel| {
            kernel.forward(engine, states, y.slice_mut());
        });
        let y = self.mapped(y, &asks, move |pass, dy| {
            let Some(snapshots) = &snapshots else {
                return Ok(());
            };
            let zeros = |data: &Data| Numbers::zeros(dtype, data.read().slice().len());
            let [a, b, c, d, e] = inputs.each_ref().map(|(data, _)| zeros(data));
            let mut gradients = [a?, b?, c?, d?, e?];
            let to = gradients.each_mut().map(Numbers::slice_mut);
            with_inputs(&kernel, &inputs, |kernel| {
                kernel.backward(pass.engine, snapshots.slice(), dy.slice(), to);
            });
            let mut each = inputs.iter().zip(gradients);
            each.try_for_each(|((_, slot), gradient)| pass.add(slot, gradient))
        });
        Ok((y, after.into_tensor(dims)?))
    }
}

/// Checks that inputs have the rows of `like`, in the type of its sums, and these widths.
pub(super) fn check_inputs(op: &str, like: &Value, inputs: &[(&Value, usize)]) -> Result<()> {
    let dtype = like.sum_type();
    let (_, rows) = like.dims().split_last().unwrap_or((&1, &[]));
    for (input, width) in inputs {
        let dims = [rows, &[*width]].concat();
        if input.dims() != dims || input.dtype() != dtype {
            bail!(
                "{op}: an input is {:?} {:?}; expected {dtype:?} {dims:?}",
                input.dtype(),
                input.dims()
            );
        }
    }
    Ok(())
}

/// Checks a tensor beside the inputs, which has the type of the sums of `like`.
pub(super) fn check_tensor(
    op: &str,
    name: &str,
    tensor: Option<&Tensor>,
    like: &Value,
    dims: &[usize],
) -> Result<()> {
    let dtype = like.sum_type();
    match tensor {
        Some(tensor) if tensor.dims() != dims || tensor.dtype() != dtype => bail!(
            "{op}: {name} is {:?} {:?}; expected {dtype:?} {dims:?}",
            tensor.dtype(),
            tensor.dims()
        ),
        _ => Ok(()),
    }
}
