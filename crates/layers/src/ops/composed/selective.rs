//! A selective scan, position by position for all sequences and channels at once.

use std::sync::Arc;

use candle_blocks_kernels::recurrence::CHUNK;
use candle_core::{Result, Tensor};

use super::recurrence::Positions;
use super::{Array, Composed, Taped};
use crate::ops::selective::SelectiveScan;
use crate::ops::tape::Reads;

/// The inputs at one position: `[sequences, 1, channels]` and `[sequences, state_dim, 1]`.
struct Position {
    step: Array,
    query: Array,
    key: Array,
    value: Array,
    /// `exp(rate · step)`, `[sequences, state_dim, channels]`.
    decay: Array,
}

impl Position {
    fn of(rate: &Array, all: &[Array; 4], at: usize) -> Result<Self> {
        let one = |of: &Array, is_column: bool| {
            let (sequences, width) = (of.dims()[1], of.width());
            let dims = match is_column {
                true => [sequences, width, 1],
                false => [sequences, 1, width],
            };
            of.narrow(0, at, 1)?.reshape(&dims)
        };
        let [step, query, key, value] = all;
        let step = one(step, false)?;
        Ok(Self {
            decay: step.mul(rate)?.exp()?,
            step,
            query: one(query, true)?,
            key: one(key, true)?,
            value: one(value, false)?,
        })
    }

    fn next(&self, state: &Array) -> Result<Array> {
        state.mul(&self.decay)?.add(&self.key.mul(&self.value)?)
    }
}

impl Taped<Composed> {
    pub(in crate::ops) fn scan(
        &self,
        of: &SelectiveScan,
        others: [Self; 3],
    ) -> Result<(Self, Tensor)> {
        let of_rate = self.place(of.rate, Reads::Both);
        let rate = Array::of(of.rate);
        let [step, query, key] = &others;
        let inputs = [step, query, key, self];
        let device = self.data.device().clone();
        let n_rows = self.dims().iter().product::<usize>() / self.slot.width.max(1);
        let positions = Arc::new(Positions::new(of.sequences.rows, n_rows, &device)?);
        let [steps, queries, keys, values] = inputs.map(|of| of.view()?.rows());
        let rows = [steps?, queries?, keys?, values?];
        let at_positions = {
            let positions = positions.clone();
            move || -> Result<[Array; 4]> {
                let heads = |at: usize| positions.heads(&rows[at], [1, 1]);
                Ok([heads(0)?, heads(1)?, heads(2)?, heads(3)?])
            }
        };
        let dims = of.state_dims();
        let mut state = match of.sequences.before {
            Some(state) => Array::of(state),
            None => self.data.zeros(&dims)?,
        };
        let slots = inputs.map(|of| of.slot.clone());
        let [a, b, c, d] = slots.each_ref().map(|slot| slot.place);
        let asks = [of_rate, a, b, c, d];
        let is_tracked = asks.iter().any(Option::is_some);
        let (mut y, mut snapshots) = (Vec::new(), Vec::new());
        let all = at_positions()?;
        for at in 0..positions.n_positions() {
            if is_tracked && at % CHUNK == 0 {
                snapshots.push(state.clone());
            }
            let position = Position::of(&rate, &all, at)?;
            state = position.next(&state)?;
            y.push(state.mul(&position.query)?.sum(1)?);
        }
        let y = match y.is_empty() {
            true => self.data.zeros(self.dims())?,
            false => positions.rows(&y, [1, 1])?,
        };
        let y = y.reshape(self.dims())?;
        let y = self.mapped(y, &asks, move |pass, dy| {
            let dy = positions.heads(&dy.rows()?, [1, 1])?;
            let all = at_positions()?;
            let mut gradients = [const { Vec::new() }; 4];
            let mut of_rates = rate.zeros(rate.dims())?;
            let mut of_state: Option<Array> = None;
            for (chunk, snapshot) in snapshots.iter().enumerate().rev() {
                let range = chunk * CHUNK..positions.n_positions().min((chunk + 1) * CHUNK);
                let mut states = vec![snapshot.clone()];
                let mut computed = Vec::new();
                for at in range.clone() {
                    let position = Position::of(&rate, &all, at)?;
                    states.push(position.next(&states[states.len() - 1])?);
                    computed.push(position);
                }
                for (i, at) in range.enumerate().rev() {
                    let (position, [before, after]) = (&computed[i], [&states[i], &states[i + 1]]);
                    let [sequences, _, channels] = dims;
                    let dy = dy.narrow(0, at, 1)?.reshape(&[sequences, 1, channels])?;
                    let own = position.query.mul(&dy)?;
                    let after_it = match of_state.take() {
                        Some(of_state) => of_state.add(&own)?,
                        None => own,
                    };
                    let decayed = after_it.mul(&position.decay)?;
                    let of_logarithm = decayed.mul(before)?;
                    of_rates = of_rates.add(
                        &of_logarithm
                            .mul(&position.step)?
                            .sum(0)?
                            .reshape(rate.dims())?,
                    )?;
                    let each = [
                        of_logarithm.mul(&rate)?.sum(1)?,
                        after.mul(&dy)?.sum(2)?,
                        after_it.mul(&position.value)?.sum(2)?,
                        after_it.mul(&position.key)?.sum(1)?,
                    ];
                    of_state = Some(decayed);
                    for (all, one) in gradients.iter_mut().zip(each) {
                        all.push(one);
                    }
                }
            }
            if of_rate.is_some() {
                pass.add_parameter(of_rate, of_rates)?;
            }
            for (slot, mut gradients) in slots.iter().zip(gradients) {
                if slot.place.is_some() && !gradients.is_empty() {
                    gradients.reverse();
                    pass.add(slot, positions.rows(&gradients, [1, 1])?)?;
                }
            }
            Ok(())
        });
        Ok((y, state.into_tensor()))
    }
}
