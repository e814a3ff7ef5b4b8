//! The selective scan (Gu and Dao 2023, <https://arxiv.org/abs/2312.00752>): a recurrence in which every element of a
//! state has its own decay. It is computed position by position, so that a sequence in pieces has the same bits as in
//! one piece.

use super::columns::{self, Columns};
use super::forward::rows_of;
use super::states::{StateKernel, States, TypedStates};
use crate::cpu::Cpu;
use crate::memory::scratch::{lend, scratch};
use crate::threads::{Target, parallel};
use crate::vectors::{Level, LevelTask, MAX_LANES, Real, Slice, SliceMut, Stored, Vectors};

mod backward;
#[cfg(test)]
mod tests;

/// A selective scan over several sequences' rows, in f32 or f64. Its result is `y`, `[rows, channels]`, its states are
/// `[state_dim, channels]`. For element `i` of channel `c`:
///
/// ```text
/// S[i, c] = exp(rate[i, c] · step[c]) S[i, c] + key[i] · value[c]
/// y[c]    = Σ query[i] · S[i, c]
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SelectiveScan<'a> {
    /// How many elements a channel's state has.
    pub state_dim: usize,
    /// How many channels there are.
    pub channels: usize,
    /// The rates, `[state_dim, channels]`: negative or 0.
    pub rate: Slice<'a>,
    /// The steps, `[rows, channels]`.
    pub step: Slice<'a>,
    /// The queries, `[rows, state_dim]`.
    pub query: Slice<'a>,
    /// The keys, `[rows, state_dim]`.
    pub key: Slice<'a>,
    /// The values, `[rows, channels]`.
    pub value: Slice<'a>,
    /// Each sequence's rows, in order.
    pub sequences: &'a [Vec<u32>],
}

/// [`SelectiveScan`] in one type.
#[derive(Clone, Copy)]
struct Typed<'a, T> {
    state_dim: usize,
    channels: usize,
    rate: &'a [T],
    step: &'a [T],
    query: &'a [T],
    key: &'a [T],
    value: &'a [T],
    sequences: &'a [Vec<u32>],
}

scratch! {
    /// A task's columns.
    SCANNED
}

/// The columns that one task computes: as many as the longest two vectors have, so that tasks are the same on every
/// instruction set.
const TASK_COLUMNS: usize = 2 * MAX_LANES;

impl StateKernel for SelectiveScan<'_> {
    fn forward(&self, cpu: Cpu, states: States, y: SliceMut) {
        match self.value {
            Slice::F64(_) => self.typed::<f64>().forward(cpu, states, y),
            _ => self.typed::<f32>().forward(cpu, states, y),
        }
    }

    fn backward(&self, cpu: Cpu, snapshots: Slice, dy: Slice, gradients: [SliceMut; 5]) {
        match self.value {
            Slice::F64(_) => self.typed::<f64>().backward(cpu, snapshots, dy, gradients),
            _ => self.typed::<f32>().backward(cpu, snapshots, dy, gradients),
        }
    }
}

impl SelectiveScan<'_> {
    fn typed<T: Stored>(&self) -> Typed<'_, T> {
        let typed = Typed {
            state_dim: self.state_dim,
            channels: self.channels,
            rate: T::of_slice(self.rate),
            step: T::of_slice(self.step),
            query: T::of_slice(self.query),
            key: T::of_slice(self.key),
            value: T::of_slice(self.value),
            sequences: self.sequences,
        };
        typed.check();
        typed
    }
}

impl<T> Typed<'_, T> {
    fn check(&self) {
        assert!(self.state_dim > 0 && self.channels > 0);
        let rows = self.n_rows();
        assert_eq!(self.rate.len(), self.state_dim * self.channels);
        assert_eq!(self.value.len(), rows * self.channels);
        assert_eq!(self.step.len(), self.value.len());
        assert_eq!(self.query.len(), rows * self.state_dim);
        assert_eq!(self.key.len(), self.query.len());
    }

    fn n_rows(&self) -> usize {
        self.value.len() / self.channels
    }

    /// Returns how many tasks share the channels.
    fn n_parts(&self) -> usize {
        self.channels.div_ceil(TASK_COLUMNS)
    }

    /// Returns the multiplications in the forward pass. An exponential counts as eight.
    fn work(&self) -> usize {
        let positions: usize = self.sequences.iter().map(Vec::len).sum();
        12 * positions * self.state_dim * self.channels
    }

    /// Returns a row's channels.
    fn of_channels<'r>(&self, rows: &'r [T], row: u32) -> &'r [T] {
        &rows[row as usize * self.channels..][..self.channels]
    }

    /// Returns a row's query or key.
    fn of_state<'r>(&self, rows: &'r [T], row: u32) -> &'r [T] {
        &rows[row as usize * self.state_dim..][..self.state_dim]
    }
}

impl<T: Real> Typed<'_, T> {
    /// Copies the rates of some columns, `[state_dim, lanes]`.
    #[inline(always)]
    fn load_rates<L: Vectors<T>>(&self, level: L, columns: &Columns, to: &mut [T]) {
        let rates = self.rate.chunks_exact(self.channels);
        for (from, to) in rates.zip(to.chunks_exact_mut(2 * L::LANES)) {
            columns::store(level, columns.vectors(level, from), to, 0);
        }
    }

    /// Computes a position's factors `exp(rate · step)`, `[state_dim, lanes]`.
    #[inline(always)]
    fn decays<L: Vectors<T>>(
        &self,
        level: L,
        row: u32,
        columns: &Columns,
        rates: &[T],
        decays: &mut [T],
    ) {
        let step = columns.vectors(level, self.of_channels(self.step, row));
        for at in (0..rates.len()).step_by(2 * L::LANES) {
            let rate = columns::load(level, rates, at);
            let logarithm = [0, 1].map(|c| level.multiply(rate[c], step[c]));
            columns::store(level, logarithm, decays, at);
        }
        decays.iter_mut().for_each(|decay| *decay = decay.exp());
    }
}

impl<T: Stored + Real> Typed<'_, T>
where
    for<'a> Forward<'a, T>: LevelTask,
{
    fn forward(&self, cpu: Cpu, states: States, y: SliceMut) {
        let (n, channels) = (self.state_dim, self.channels);
        let states = TypedStates::new(self.sequences, [n, channels], states);
        let y = rows_of(self.sequences, self.n_rows(), channels, y);
        let (threads, n_parts) = (cpu.for_work(self.work()).threads, self.n_parts());
        parallel::for_tasks(threads, self.sequences.len() * n_parts, |task| {
            let (sequence, part) = (task / n_parts, task % n_parts);
            lend(SCANNED, 3 * n * TASK_COLUMNS, |memory| {
                cpu.isa.enter(Forward {
                    of: self,
                    at: (sequence, part),
                    memory,
                    states: &states,
                    y: &y,
                });
            });
        });
    }
}

/// The forward pass for one task's columns in one sequence.
pub(super) struct Forward<'a, T> {
    of: &'a Typed<'a, T>,
    /// The sequence and the part of the columns.
    at: (usize, usize),
    memory: &'a mut [T],
    states: &'a TypedStates<'a, T>,
    y: &'a Target<'a, T>,
}

impl LevelTask for Forward<'_, f32> {
    #[inline(always)]
    fn compute<L: Level>(self, level: L) {
        self.run(level);
    }
}

impl LevelTask for Forward<'_, f64> {
    #[inline(always)]
    fn compute<L: Level>(self, level: L) {
        self.run(level);
    }
}

/// Returns the columns of a task, two vectors at a time.
#[inline(always)]
fn columns_of_part<T: Real, L: Vectors<T>>(
    channels: usize,
    part: usize,
) -> impl Iterator<Item = Columns> {
    let range = part * TASK_COLUMNS..channels.min((part + 1) * TASK_COLUMNS);
    columns::within::<T, L>(range)
}

impl<T: Real> Forward<'_, T> {
    #[inline(always)]
    fn run<L: Vectors<T>>(self, level: L) {
        let (sequence, part) = self.at;
        let (of, n) = (self.of, self.of.state_dim);
        let (of_state, len) = ((sequence, 0), n * 2 * L::LANES);
        let (state, rest) = self.memory.split_at_mut(len);
        let (rates, rest) = rest.split_at_mut(len);
        let decays = &mut rest[..len];
        for columns in columns_of_part::<T, L>(of.channels, part) {
            self.states.load(level, &columns, of_state, state);
            of.load_rates(level, &columns, rates);
            for (i, &row) in of.sequences[sequence].iter().enumerate() {
                self.states.keep(level, &columns, of_state, i, state);
                of.decays(level, row, &columns, rates, decays);
                let value = columns.vectors(level, of.of_channels(of.value, row));
                let keys = [of.key, of.query].map(|rows| of.of_state(rows, row));
                let y = position(level, state, keys, decays, value);
                // SAFETY: only this task writes its columns in the rows of its sequence.
                let to = unsafe { self.y.piece(row as usize, columns.range.clone()) };
                columns::store_some(level, y, to);
            }
            self.states.store(level, &columns, of_state, state);
        }
    }
}

/// Replaces `S` by `decays · S + key ⊗ value`, and returns `Sᵀ query`.
#[inline(always)]
fn position<T: Real, L: Vectors<T>>(
    level: L,
    state: &mut [T],
    [key, query]: [&[T]; 2],
    decays: &[T],
    value: columns::Pair<L::Vector>,
) -> columns::Pair<L::Vector> {
    // Two sums, so that additions do not wait for each other.
    let mut sums = [[level.splat(T::ZERO); 2]; 2];
    for (i, (&k, &q)) in key.iter().zip(query).enumerate() {
        let at = i * 2 * L::LANES;
        let s = next(level, state, at, k, decays, value);
        columns::store(level, s, state, at);
        let (q, sum) = (level.splat(q), &mut sums[i % 2]);
        for c in 0..2 {
            sum[c] = level.multiply_add(q, s[c], sum[c]);
        }
    }
    columns::add(level, sums[0], sums[1])
}

/// Returns a row of the next state, which begins at element `at` of all.
#[inline(always)]
fn next<T: Real, L: Vectors<T>>(
    level: L,
    state: &[T],
    at: usize,
    key: T,
    decays: &[T],
    value: columns::Pair<L::Vector>,
) -> columns::Pair<L::Vector> {
    let key = level.splat(key);
    let [s, decay] = [state, decays].map(|of| columns::load(level, of, at));
    [0, 1].map(|c| level.multiply_add(key, value[c], level.multiply(decay[c], s[c])))
}
