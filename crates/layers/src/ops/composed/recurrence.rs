//! A recurrence, position by position for all sequences and heads at once.

use std::sync::Arc;

use candle_blocks_kernels::recurrence::{CHUNK, Rule, StateHeads};
use candle_core::{Device, Result, Tensor};

use super::{Array, Composed, Taped};
use crate::ops::recurrence::Recurrence;

/// The rows of a pass, position by position: `[positions, sequences]`, and back.
pub(super) struct Positions {
    n_positions: usize,
    n_sequences: usize,
    /// The row of each position; the row after all others where a sequence has ended.
    to_positions: Array,
    /// The position of each row, counted through; the one after all others for a row outside all sequences.
    to_rows: Array,
}

impl Positions {
    pub fn new(rows: &[Vec<u32>], n_rows: usize, device: &Device) -> Result<Self> {
        let n_sequences = rows.len();
        let n_positions = rows.iter().map(Vec::len).max().unwrap_or(0);
        let n = n_positions * n_sequences;
        let mut to_positions = vec![n_rows as u32; n];
        let mut to_rows = vec![n as u32; n_rows];
        for (sequence, rows) in rows.iter().enumerate() {
            for (position, &row) in rows.iter().enumerate() {
                let at = position * n_sequences + sequence;
                to_positions[at] = row;
                to_rows[row as usize] = at as u32;
            }
        }
        Ok(Self {
            n_positions,
            n_sequences,
            to_positions: Array::upload_ids(to_positions, &[n], device)?,
            to_rows: Array::upload_ids(to_rows, &[n_rows], device)?,
        })
    }

    /// Returns how many positions the longest sequence has.
    pub fn n_positions(&self) -> usize {
        self.n_positions
    }

    /// Returns the rows with these ids, and zeros where there is none.
    fn moved(rows: &Array, ids: &Array) -> Result<Array> {
        let zeros = rows.zeros(&[1, rows.width()])?;
        Array::cat(&[rows.clone(), zeros], 0)?.select_rows(ids)
    }

    /// Returns `[positions, sequences, heads, ..]`, with each of `n_heads` heads repeated `group` times.
    pub fn heads(&self, rows: &Array, [n_heads, group]: [usize; 2]) -> Result<Array> {
        let width = rows.width() / n_heads;
        let heads = Self::moved(rows, &self.to_positions)?;
        let n = self.n_positions * self.n_sequences;
        let repeated = heads.reshape(&[n, n_heads, 1, width])?;
        let repeated = repeated.broadcast(&[n, n_heads, group, width])?;
        repeated.reshape(&[self.n_positions, self.n_sequences, n_heads * group, width])
    }

    /// Returns the rows of gradients at each position, summed over the `group` heads that share one.
    pub fn rows(&self, at_positions: &[Array], [n_heads, group]: [usize; 2]) -> Result<Array> {
        let all = Array::cat(at_positions, 0)?;
        let n = self.n_positions * self.n_sequences;
        let width = all.tensor().elem_count() / (n * n_heads * group).max(1);
        let summed = all.reshape(&[n * n_heads, group, width])?.sum(1)?;
        Self::moved(&summed.reshape(&[n, n_heads * width])?, &self.to_rows)
    }
}

/// The inputs at one position: columns `[sequences, heads, key_dim, 1]`, rows `[sequences, heads, 1, value_dim]`, and
/// factors `[sequences, heads, 1, 1]`, or those of each row `[sequences, heads, key_dim, 1]`.
struct Position {
    rule: Rule,
    query: Array,
    key: Array,
    value: Array,
    decay: Array,
    write: Array,
}

/// The values that a position computes from the state before it.
struct Computed {
    decayed: Array,
    error: Array,
    delta: Array,
    state: Array,
}

impl Position {
    fn of(rule: Rule, all: &[Array; 5], at: usize) -> Result<Self> {
        let [query, key, value, decay, write] = all;
        let one = |of: &Array, last: [usize; 2]| {
            let dims = of.dims();
            of.narrow(0, at, 1)?
                .reshape(&[dims[1], dims[2], last[0], last[1]])
        };
        let [keys, values] = [query.width(), value.width()];
        Ok(Self {
            rule,
            query: one(query, [keys, 1])?,
            key: one(key, [keys, 1])?,
            value: one(value, [1, values])?,
            decay: one(decay, [decay.width(), 1])?,
            write: one(write, [1, 1])?,
        })
    }

    fn compute(&self, state: &Array) -> Result<Computed> {
        let decayed = state.mul(&self.decay)?;
        let error = match self.rule {
            Rule::Delta | Rule::ChannelDelta => self.value.sub(&decayed.mul(&self.key)?.sum(2)?)?,
            Rule::Sum => self.value.clone(),
        };
        let delta = error.mul(&self.write)?;
        let state = decayed.add(&self.key.mul(&delta)?)?;
        Ok(Computed {
            decayed,
            error,
            delta,
            state,
        })
    }

    /// Returns the gradients of query, key, value, the decay's logarithm and write, and that of the state before.
    fn gradients(
        &self,
        computed: &Computed,
        dy: &Array,
        of_state: &Array,
    ) -> Result<([Array; 5], Array)> {
        let of_query = computed.state.mul(dy)?.sum(3)?;
        let of_state = of_state.add(&self.query.mul(dy)?)?;
        let of_delta = of_state.mul(&self.key)?.sum(2)?;
        let of_error = of_delta.mul(&self.write)?;
        let of_write = of_delta.mul(&computed.error)?.sum(3)?;
        let of_key = of_state.mul(&computed.delta)?;
        let (of_key, of_decayed) = match self.rule {
            Rule::Delta | Rule::ChannelDelta => (
                of_key.sub(&computed.decayed.mul(&of_error)?)?,
                of_state.sub(&self.key.mul(&of_error)?)?,
            ),
            Rule::Sum => (of_key, of_state),
        };
        let of_key = of_key.sum(3)?;
        let of_decay = of_decayed.mul(&computed.decayed)?.sum(3)?;
        let of_decay = match self.rule {
            Rule::ChannelDelta => of_decay,
            Rule::Delta | Rule::Sum => of_decay.sum(2)?,
        };
        let before = of_decayed.mul(&self.decay)?;
        Ok(([of_query, of_key, of_error, of_decay, of_write], before))
    }
}

impl Taped<Composed> {
    pub(in crate::ops) fn recur(
        &self,
        of: &Recurrence,
        others: [Self; 4],
    ) -> Result<(Self, Tensor)> {
        let StateHeads {
            n_keys, n_values, ..
        } = of.heads;
        let rule = of.rule;
        let [key, value, decay, write] = &others;
        let inputs = [self, key, value, decay, write];
        let device = value.data.device().clone();
        let n_rows = value.dims().iter().product::<usize>() / value.slot.width.max(1);
        let positions = Arc::new(Positions::new(of.sequences.rows, n_rows, &device)?);
        let shared = [n_keys, n_values / n_keys];
        let groups = [shared, shared, [n_values, 1], [n_values, 1], [n_values, 1]];
        let [query, keys, values, decay, write] = inputs.map(|of| of.view()?.rows());
        let rows = [query?, keys?, values?, decay?, write?];
        let at_positions = {
            let positions = positions.clone();
            move || -> Result<[Array; 5]> {
                let heads = |at: usize| positions.heads(&rows[at], groups[at]);
                Ok([heads(0)?, heads(1)?, heads(2)?, heads(3)?.exp()?, heads(4)?])
            }
        };
        let dims = of.state_dims();
        let mut state = match of.sequences.before {
            Some(state) => Array::of(state),
            None => value.data.zeros(&dims)?,
        };
        let slots = inputs.map(|of| of.slot.clone());
        let asks = slots.each_ref().map(|slot| slot.place);
        let is_tracked = asks.iter().any(Option::is_some);
        let (mut y, mut snapshots) = (Vec::new(), Vec::new());
        let all = at_positions()?;
        for at in 0..positions.n_positions {
            if is_tracked && at % CHUNK == 0 {
                snapshots.push(state.clone());
            }
            let position = Position::of(rule, &all, at)?;
            state = position.compute(&state)?.state;
            y.push(state.mul(&position.query)?.sum(2)?);
        }
        let y = match y.is_empty() {
            true => value.data.zeros(value.dims())?,
            false => positions.rows(&y, [n_values, 1])?,
        };
        let y = y.reshape(value.dims())?;
        let y = value.mapped(y, &asks, move |pass, dy| {
            let dy = positions.heads(&dy.rows()?, [n_values, 1])?;
            let all = at_positions()?;
            let mut gradients = [const { Vec::new() }; 5];
            let mut of_state: Option<Array> = None;
            for (chunk, snapshot) in snapshots.iter().enumerate().rev() {
                let range = chunk * CHUNK..positions.n_positions.min((chunk + 1) * CHUNK);
                let mut state = snapshot.clone();
                let mut computed = Vec::new();
                for at in range.clone() {
                    let position = Position::of(rule, &all, at)?;
                    let of = position.compute(&state)?;
                    state = of.state.clone();
                    computed.push((position, of));
                }
                for (at, (position, computed)) in range.zip(computed).rev() {
                    let width = dy.width();
                    let dy = dy.narrow(0, at, 1)?;
                    let dy = dy.reshape(&[positions.n_sequences, n_values, 1, width])?;
                    let after = match of_state.take() {
                        Some(of_state) => of_state,
                        None => snapshot.zeros(snapshot.dims())?,
                    };
                    let (each, before) = position.gradients(&computed, &dy, &after)?;
                    of_state = Some(before);
                    for (all, one) in gradients.iter_mut().zip(each) {
                        all.push(one);
                    }
                }
            }
            for ((slot, mut gradients), group) in slots.iter().zip(gradients).zip(groups) {
                if slot.place.is_some() && !gradients.is_empty() {
                    gradients.reverse();
                    pass.add(slot, positions.rows(&gradients, group)?)?;
                }
            }
            Ok(())
        });
        Ok((y, state.into_tensor()))
    }
}
