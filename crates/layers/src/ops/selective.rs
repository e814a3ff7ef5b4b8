//! A selective scan over the sequences of a pass.

use std::sync::Arc;

use candle_blocks_kernels::recurrence;
use candle_blocks_kernels::{Cpu, Slice};
use candle_core::{Result, Tensor};

use super::slot::Slot;
use super::states::{Sequences, WithInputs, check_inputs, check_tensor};
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
    /// The sequences, with states `[batch, state_dim, channels]`.
    pub sequences: Sequences<'a>,
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
        [
            self.sequences.rows.len(),
            self.key.width(),
            self.value.width(),
        ]
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
        let (before, dims) = (self.sequences.before, self.state_dims());
        check_tensor(OP, "the state", before, self.value, &dims)
    }
}

/// The kernel for rates, steps, queries, keys and values.
struct Kernel {
    state_dim: usize,
    channels: usize,
    rows: Arc<Vec<Vec<u32>>>,
}

impl WithInputs for Kernel {
    type Kernel<'a> = recurrence::SelectiveScan<'a>;

    fn with<'a>(&'a self, inputs: [Slice<'a>; 5]) -> Self::Kernel<'a> {
        let [rate, step, query, key, value] = inputs;
        recurrence::SelectiveScan {
            state_dim: self.state_dim,
            channels: self.channels,
            rate,
            step,
            query,
            key,
            value,
            sequences: &self.rows,
        }
    }
}

impl Taped<Cpu> {
    /// `others` are steps, queries and keys.
    fn scan(&self, of: &SelectiveScan, others: [Self; 3]) -> Result<(Self, Tensor)> {
        let [step, query, key] = &others;
        let dims = of.state_dims();
        let [_, state_dim, channels] = dims;
        let kernel = Kernel {
            state_dim,
            channels,
            rows: of.sequences.rows.clone(),
        };
        let (rate, place) = self.parameter(of.rate, Reads::Both)?;
        let rate = (rate, Slot::whole(place, state_dim * channels));
        let inputs = [step, query, key, self].map(|of| (of.data.clone(), of.slot.clone()));
        let [step, query, key, value] = inputs;
        self.with_states(
            kernel,
            [rate, step, query, key, value],
            &of.sequences,
            &dims,
        )
    }
}
