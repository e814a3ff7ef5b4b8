//! A selective scan over the sequences of a pass.

use std::sync::Arc;

use candle_blocks_kernels::Cpu;
use candle_blocks_kernels::recurrence::{self, SelectiveGradients, n_snapshots};
use candle_core::{Result, Tensor};

use super::kernels::Data;
use super::numbers::Numbers;
use super::recurrence::{add_asked, change, check_inputs, check_tensor};
use super::tape::{Reads, Taped};
use super::value::{Value, on_either};

const OP: &str = "selective scan";

/// The inputs of a selective scan in f32 or f64, with one row for each position.
pub(crate) struct SelectiveScan<'a> {
    /// The rates, `[state_dim, channels]`: a parameter, negative or 0.
    pub rate: &'a Tensor,
    /// The steps, `[.., channels]`.
    pub step: &'a Value,
    /// The queries, `[.., state_dim]`.
    pub query: &'a Value,
    /// The keys, `[.., state_dim]`.
    pub key: &'a Value,
    /// The values, `[.., channels]`.
    pub value: &'a Value,
    /// The states before, `[batch, state_dim, channels]`, which get no gradient; zeros without.
    pub state: Option<&'a Tensor>,
    /// Earlier states that nobody reads again, whose memory those after may take over.
    pub spare: Option<&'a Tensor>,
    /// The rows of each sequence.
    pub rows: &'a Arc<Vec<Vec<u32>>>,
}

impl SelectiveScan<'_> {
    /// Computes `S[i, c] = exp(rate[i, c] · step[c]) S[i, c] + key[i] · value[c]` and `y[c] = Σ query[i] · S[i, c]` at each
    /// position. Returns `y`, `[.., channels]`, and the states after. Rows outside all sequences are zeros.
    pub fn compute(&self) -> Result<(Value, Tensor)> {
        self.check()?;
        on_either!(self.value, x => {
            let others = [self.step, self.query, self.key].map(|of| x.on_tape(of)?.whole());
            let [step, query, key] = others;
            let (y, state) = x.whole()?.scan(self, [step?, query?, key?])?;
            Ok((y.into(), state))
        })
    }

    /// Returns the states' dimensions.
    pub(super) fn state_dims(&self) -> [usize; 3] {
        [self.rows.len(), self.key.width(), self.value.width()]
    }

    fn check(&self) -> Result<()> {
        let [_, state_dim, channels] = self.state_dims();
        let inputs = [
            (self.step, channels),
            (self.query, state_dim),
            (self.key, state_dim),
            (self.value, channels),
        ];
        check_inputs(OP, self.value, &inputs)?;
        let rate = [state_dim, channels];
        check_tensor(OP, "the rate", Some(self.rate), self.value, &rate)?;
        check_tensor(OP, "the state", self.state, self.value, &self.state_dims())
    }
}

/// The kernel's inputs: rates, steps, queries, keys and values.
struct Inputs {
    state_dim: usize,
    channels: usize,
    data: [Data; 5],
    rows: Arc<Vec<Vec<u32>>>,
}

impl Inputs {
    /// Runs `work` with the kernel's view.
    fn with<R>(&self, work: impl FnOnce(&recurrence::SelectiveScan) -> R) -> R {
        let [rate, step, query, key, value] = self.data.each_ref().map(Data::read);
        work(&recurrence::SelectiveScan {
            state_dim: self.state_dim,
            channels: self.channels,
            rate: rate.slice(),
            step: step.slice(),
            query: query.slice(),
            key: key.slice(),
            value: value.slice(),
            sequences: &self.rows,
        })
    }
}

impl Taped<Cpu> {
    /// `others` are steps, queries and keys.
    fn scan(&self, of: &SelectiveScan, others: [Self; 3]) -> Result<(Self, Tensor)> {
        let [step, query, key] = &others;
        let (dtype, engine) = (self.dtype(), self.engine());
        let dims = of.state_dims();
        let [_, state_dim, channels] = dims;
        let (rate, of_rate) = self.parameter(of.rate, Reads::Both)?;
        let inputs = [step, query, key, self];
        let slots = inputs.map(|of| of.slot.clone());
        let [step, query, key, value] = inputs.map(|of| of.data.clone());
        let [a, b, c, d] = slots.each_ref().map(|slot| slot.place);
        let asks = [of_rate, a, b, c, d];
        let mut snapshots = match asks.iter().any(Option::is_some) {
            true => {
                let len = n_snapshots(of.rows) * state_dim * channels;
                Some(Numbers::new(dtype, len)?)
            }
            false => None,
        };
        let mut y = Numbers::new(dtype, self.elem_count())?;
        let kernel = Inputs {
            state_dim,
            channels,
            data: [rate, step, query, key, value],
            rows: of.rows.clone(),
        };
        let state = kernel.with(|scan| {
            change(
                [of.state, of.spare],
                dtype,
                &dims,
                snapshots.as_mut(),
                |states| {
                    scan.forward(engine, states, y.slice_mut());
                },
            )
        })?;
        let y = self.mapped(y, &asks, move |pass, dy| {
            let Some(snapshots) = &snapshots else {
                return Ok(());
            };
            let zeros = |of: &Data| Numbers::zeros(dtype, of.read().slice().len());
            let [rate, step, query, key, value] = kernel.data.each_ref().map(zeros);
            let (mut of_rates, mut gradients) = (rate?, [step?, query?, key?, value?]);
            let [step, query, key, value] = gradients.each_mut().map(Numbers::slice_mut);
            kernel.with(|scan| {
                let to = SelectiveGradients {
                    rate: of_rates.slice_mut(),
                    step,
                    query,
                    key,
                    value,
                };
                scan.backward(pass.engine, snapshots.slice(), dy.slice(), to);
            });
            if of_rate.is_some() {
                pass.add_parameter(of_rate, of_rates)?;
            }
            add_asked(pass, &slots, gradients)
        });
        Ok((y, state))
    }
}
