//! A recurrence over the sequences of a pass.

use std::sync::Arc;

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::recurrence::{
    self, RecurrenceGradients, Rule, StateHeads, States, n_snapshots,
};
use candle_core::{DType, Result, Tensor, bail};

use super::backward::BackwardPass;
use super::kernels::{Data, readable};
use super::numbers::Numbers;
use super::slot::Slot;
use super::tape::Taped;
use super::value::{Value, on_either};

const OP: &str = "recurrence";

/// The inputs of a recurrence in f32 or f64, with one row for each position.
pub(crate) struct Recurrence<'a> {
    /// The term that each position adds to a state.
    pub rule: Rule,
    /// The heads and their widths.
    pub heads: StateHeads,
    /// The queries, `[.., n_keys · key_dim]`.
    pub query: &'a Value,
    /// The keys.
    pub key: &'a Value,
    /// The values, `[.., n_values · value_dim]`.
    pub value: &'a Value,
    /// The logarithms of the states' decay, `[.., n_values]`; by [`Rule::ChannelDelta`], `[.., n_values · key_dim]`.
    pub decay: &'a Value,
    /// The strengths with which the states are written, `[.., n_values]`.
    pub write: &'a Value,
    /// The states before, `[batch, n_values, key_dim, value_dim]`, which get no gradient; zeros without.
    pub state: Option<&'a Tensor>,
    /// Earlier states that nobody reads again, whose memory those after may take over.
    pub spare: Option<&'a Tensor>,
    /// The rows of each sequence.
    pub rows: &'a Arc<Vec<Vec<u32>>>,
}

impl Recurrence<'_> {
    /// Computes `S = α S + k ⊗ ..` by the rule and `y = Sᵀ q` at each position, with `α = exp(decay)` and `β = write`.
    /// Returns `y`, `[.., n_values · value_dim]`, and the states after. Rows outside all sequences are zeros.
    pub fn compute(&self) -> Result<(Value, Tensor)> {
        self.check()?;
        on_either!(self.query, x => {
            let others = [self.key, self.value, self.decay, self.write];
            let [key, value, decay, write] = others.map(|of| x.on_tape(of)?.whole());
            let (y, state) = x.whole()?.recur(self, [key?, value?, decay?, write?])?;
            Ok((y.into(), state))
        })
    }

    /// Returns the states' dimensions.
    pub(super) fn state_dims(&self) -> [usize; 4] {
        let StateHeads {
            n_values,
            key_dim,
            value_dim,
            ..
        } = self.heads;
        [self.rows.len(), n_values, key_dim, value_dim]
    }

    fn check(&self) -> Result<()> {
        let StateHeads {
            n_keys,
            n_values,
            key_dim,
            value_dim,
        } = self.heads;
        let keys = n_keys * key_dim;
        let inputs = [
            (self.query, keys),
            (self.key, keys),
            (self.value, n_values * value_dim),
            (self.decay, self.heads.decay_width(self.rule)),
            (self.write, n_values),
        ];
        check_inputs(OP, self.query, &inputs)?;
        check_tensor(OP, "the state", self.state, self.query, &self.state_dims())
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

/// Runs a kernel from the states before a pass, or zeros, and returns the states after it, in the memory of spare ones if
/// there are any.
pub(super) fn change(
    [before, spare]: [Option<&Tensor>; 2],
    dtype: DType,
    dims: &[usize],
    snapshots: Option<&mut Numbers>,
    run: impl FnOnce(States),
) -> Result<Tensor> {
    let before = before.map(|before| readable(before.detach().contiguous()?));
    let before = before.transpose()?;
    let before = before.as_ref().map(Data::read);
    let len = dims.iter().product();
    let mut after = match spare {
        Some(spare) => Numbers::in_place_of(spare, dtype, len)?,
        None => Numbers::new(dtype, len)?,
    };
    run(States {
        before: before.as_ref().map(|before| before.slice()),
        after: after.slice_mut(),
        snapshots: snapshots.map(Numbers::slice_mut),
    });
    after.into_tensor(dims)
}

/// Adds the gradients of inputs to a pass, of those that have one.
pub(super) fn add_asked<const N: usize>(
    pass: &mut BackwardPass<Cpu>,
    slots: &[Slot; N],
    gradients: [Numbers; N],
) -> Result<()> {
    let each = slots.iter().zip(gradients);
    each.filter(|(slot, _)| slot.place.is_some())
        .try_for_each(|(slot, gradient)| pass.add(slot, gradient))
}

/// The kernel's inputs: queries, keys, values, decay and write.
struct Inputs {
    rule: Rule,
    heads: StateHeads,
    data: [Data; 5],
    rows: Arc<Vec<Vec<u32>>>,
}

impl Inputs {
    /// Runs `work` with the kernel's view.
    fn with<R>(&self, work: impl FnOnce(&recurrence::Recurrence) -> R) -> R {
        let [query, key, value, decay, write] = self.data.each_ref().map(Data::read);
        work(&recurrence::Recurrence {
            rule: self.rule,
            heads: self.heads,
            query: query.slice(),
            key: key.slice(),
            value: value.slice(),
            decay: decay.slice(),
            write: write.slice(),
            sequences: &self.rows,
        })
    }
}

impl Taped<Cpu> {
    /// `others` are keys, values, decay and write.
    fn recur(&self, of: &Recurrence, others: [Self; 4]) -> Result<(Self, Tensor)> {
        let [key, value, decay, write] = &others;
        let inputs = [self, key, value, decay, write];
        let (dtype, engine) = (self.dtype(), self.engine());
        let dims = of.state_dims();
        let slots = inputs.map(|of| of.slot.clone());
        let asks = slots.each_ref().map(|slot| slot.place);
        let is_tracked = asks.iter().any(Option::is_some);
        let mut snapshots = match is_tracked {
            true => Some(Numbers::new(
                dtype,
                n_snapshots(of.rows) * of.heads.state_len(),
            )?),
            false => None,
        };
        let mut y = Numbers::new(dtype, value.elem_count())?;
        let kernel = Inputs {
            rule: of.rule,
            heads: of.heads,
            data: inputs.map(|of| of.data.clone()),
            rows: of.rows.clone(),
        };
        let state = kernel.with(|rule| {
            change(
                [of.state, of.spare],
                dtype,
                &dims,
                snapshots.as_mut(),
                |states| {
                    rule.forward(engine, states, y.slice_mut());
                },
            )
        })?;
        let y = value.mapped(y, &asks, move |pass, dy| {
            let Some(snapshots) = &snapshots else {
                return Ok(());
            };
            let zeros = |of: &Data| Numbers::zeros(dtype, of.read().slice().len());
            let [query, key, value, decay, write] = kernel.data.each_ref().map(zeros);
            let mut gradients = [query?, key?, value?, decay?, write?];
            let [query, key, value, decay, write] = gradients.each_mut().map(Numbers::slice_mut);
            kernel.with(|rule| {
                let to = RecurrenceGradients {
                    query,
                    key,
                    value,
                    decay,
                    write,
                };
                rule.backward(pass.engine, snapshots.slice(), dy.slice(), to);
            });
            add_asked(pass, &slots, gradients)
        });
        Ok((y, state))
    }
}
