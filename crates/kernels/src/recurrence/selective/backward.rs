//! The selective scan's gradients. The states within a chunk are computed again from the snapshot before it.

use super::super::backward::{add_row_sums, store_vector};
use super::super::columns::{self, Columns};
use super::super::states::{CHUNK, first_snapshots};
use super::{TASK_COLUMNS, Typed, columns_of_part, next};
use crate::cpu::Cpu;
use crate::memory::scratch::{lend, scratch};
use crate::threads::{Target, parallel};
use crate::vectors::{Level, LevelTask, MAX_LANES, Real, Slice, SliceMut, Stored, Vectors};

scratch! {
    /// A task's states and their gradients.
    SCANNED_AGAIN
}

scratch! {
    /// Each task's sums for the gradients of queries and keys.
    SUMS_OF_PARTS
}

/// Rows per task that adds up the parts' sums.
const ROWS_PER_TASK: usize = 64;

impl<T: Stored + Real> Typed<'_, T>
where
    for<'a> Backward<'a, T>: LevelTask,
{
    pub fn backward(&self, cpu: Cpu, snapshots: Slice, dy: Slice, gradients: [SliceMut; 5]) {
        let [rate, step, query, key, value] = gradients;
        let (n, channels, rows) = (self.state_dim, self.channels, self.n_rows());
        let target = |of, rows, width| Target::row_major(T::of_slice_mut(of), rows, width);
        let to = Targets {
            rate: target(rate, n, channels),
            step: target(step, rows, channels),
            value: target(value, rows, channels),
        };
        let firsts = first_snapshots(self.sequences);
        let (threads, n_parts) = (cpu.for_work(4 * self.work()).threads, self.n_parts());
        let len = n_parts * rows * n;
        lend(SUMS_OF_PARTS, 2 * len, |sums: &mut [T]| {
            sums.fill(T::ZERO);
            let (of_query, of_key) = sums.split_at_mut(len);
            let parts = [&mut *of_query, &mut *of_key];
            let parts = parts.map(|of| Target::row_major(of, n_parts * rows, n));
            parallel::for_tasks(threads, n_parts, |part| {
                lend(SCANNED_AGAIN, memory_len(n), |memory| {
                    cpu.isa.enter(Backward {
                        of: self,
                        part,
                        memory,
                        snapshots: T::of_slice(snapshots),
                        firsts: &firsts,
                        dy: T::of_slice(dy),
                        to: &to,
                        parts: &parts,
                    });
                });
            });
            let both = [(query, of_query), (key, of_key)];
            for (to, parts) in both {
                add_parts(threads, parts, T::of_slice_mut(to), ROWS_PER_TASK * n);
            }
        });
    }
}

/// Adds the parts' sums in order.
fn add_parts<T: Real + Send + Sync>(threads: usize, parts: &[T], to: &mut [T], per_task: usize) {
    let len = to.len();
    parallel::for_chunks(threads, to, per_task, |start, to| {
        for part in parts.chunks_exact(len) {
            for (to, &sum) in to.iter_mut().zip(&part[start..]) {
                *to += sum;
            }
        }
    });
}

/// The gradients that tasks write, each for its own columns.
struct Targets<'a, T> {
    rate: Target<'a, T>,
    step: Target<'a, T>,
    value: Target<'a, T>,
}

/// The backward pass for one task's columns in all sequences.
pub(super) struct Backward<'a, T> {
    of: &'a Typed<'a, T>,
    part: usize,
    memory: &'a mut [T],
    snapshots: &'a [T],
    /// Each sequence's first snapshot.
    firsts: &'a [usize],
    dy: &'a [T],
    to: &'a Targets<'a, T>,
    /// This task's sums for queries and keys, `[parts, rows, state_dim]`.
    parts: &'a [Target<'a, T>; 2],
}

/// A task's memory, for two vectors of columns.
struct Memory<'a, T> {
    /// The states before each position in a chunk and after the last, `[CHUNK + 1, state_dim, lanes]`.
    states: &'a mut [T],
    /// `[state_dim, lanes]`, as are the next three.
    rates: &'a mut [T],
    of_rates: &'a mut [T],
    decays: &'a mut [T],
    /// The state's gradient.
    gradient: &'a mut [T],
    /// Products for the query's gradient, a vector for each row, up to a whole square.
    of_query: &'a mut [T],
    /// The same for the key.
    of_key: &'a mut [T],
}

fn memory_len(state_dim: usize) -> usize {
    let squares = state_dim.next_multiple_of(MAX_LANES) * MAX_LANES;
    (CHUNK + 5) * state_dim * TASK_COLUMNS + 2 * squares
}

impl<'a, T: Real> Memory<'a, T> {
    #[inline(always)]
    fn divided<L: Vectors<T>>(memory: &'a mut [T], state_dim: usize) -> Self {
        let len = state_dim * 2 * L::LANES;
        let squares = state_dim.next_multiple_of(L::LANES) * L::LANES;
        let (states, rest) = memory.split_at_mut((CHUNK + 1) * len);
        let (rates, rest) = rest.split_at_mut(len);
        let (of_rates, rest) = rest.split_at_mut(len);
        let (decays, rest) = rest.split_at_mut(len);
        let (gradient, rest) = rest.split_at_mut(len);
        let (of_query, rest) = rest.split_at_mut(squares);
        Self {
            states,
            rates,
            of_rates,
            decays,
            gradient,
            of_query,
            of_key: &mut rest[..squares],
        }
    }
}

impl LevelTask for Backward<'_, f32> {
    #[inline(always)]
    fn compute<L: Level>(self, level: L) {
        self.run(level);
    }
}

impl LevelTask for Backward<'_, f64> {
    #[inline(always)]
    fn compute<L: Level>(self, level: L) {
        self.run(level);
    }
}

impl<T: Real> Backward<'_, T> {
    #[inline(always)]
    fn run<L: Vectors<T>>(mut self, level: L) {
        let memory = std::mem::take(&mut self.memory);
        let mut memory = Memory::divided::<L>(memory, self.of.state_dim);
        memory.of_query.fill(T::ZERO);
        memory.of_key.fill(T::ZERO);
        for columns in columns_of_part::<T, L>(self.of.channels, self.part) {
            self.of.load_rates(level, &columns, memory.rates);
            memory.of_rates.fill(T::ZERO);
            for (sequence, rows) in self.of.sequences.iter().enumerate() {
                memory.gradient.fill(T::ZERO);
                for (chunk, rows) in rows.chunks(CHUNK).enumerate().rev() {
                    let snapshot = self.firsts[sequence] + chunk;
                    self.states_again(level, snapshot, rows, &columns, &mut memory);
                    for (i, &row) in rows.iter().enumerate().rev() {
                        self.position(level, (i, row), &columns, &mut memory);
                    }
                }
            }
            columns.store(level, memory.of_rates, &self.to.rate, 0);
        }
    }

    /// Computes a chunk's states from the snapshot before it.
    #[inline(always)]
    fn states_again<L: Vectors<T>>(
        &self,
        level: L,
        snapshot: usize,
        rows: &[u32],
        columns: &Columns,
        memory: &mut Memory<T>,
    ) {
        let (of, n) = (self.of, self.of.state_dim);
        let (lanes, width) = (2 * L::LANES, n * of.channels);
        let len = n * lanes;
        let from = self.snapshots[snapshot * width..][..width].chunks_exact(of.channels);
        for (from, to) in from.zip(memory.states[..len].chunks_exact_mut(lanes)) {
            columns::store(level, columns.vectors(level, from), to, 0);
        }
        for (i, &row) in rows.iter().enumerate() {
            of.decays(level, row, columns, memory.rates, memory.decays);
            let value = columns.vectors(level, of.of_channels(of.value, row));
            let (before, after) = memory.states[i * len..(i + 2) * len].split_at_mut(len);
            for (j, &key) in of.of_state(of.key, row).iter().enumerate() {
                let s = next(level, before, j * lanes, key, memory.decays, value);
                columns::store(level, s, after, j * lanes);
            }
        }
    }

    /// Adds a position's gradients, and replaces the later state's gradient by the earlier one's.
    #[inline(always)]
    fn position<L: Vectors<T>>(
        &self,
        level: L,
        (i, row): (usize, u32),
        columns: &Columns,
        memory: &mut Memory<T>,
    ) {
        let of = self.of;
        let lanes = 2 * L::LANES;
        let len = of.state_dim * lanes;
        of.decays(level, row, columns, memory.rates, memory.decays);
        let [value, step, dy] = [of.value, of.step, self.dy]
            .map(|rows| columns.vectors(level, of.of_channels(rows, row)));
        let [key, query] = [of.key, of.query].map(|rows| of.of_state(rows, row));
        let (before, after) = memory.states[i * len..(i + 2) * len].split_at(len);
        let zero = level.splat(T::ZERO);
        let (mut of_value, mut of_step) = ([[zero; 2]; 2], [[zero; 2]; 2]);
        for (j, (&k, &q)) in key.iter().zip(query).enumerate() {
            let (k, q, at) = (level.splat(k), level.splat(q), j * lanes);
            let [s, s_before] = [after, before].map(|of| columns::load(level, of, at));
            let [rate, decay] =
                [&*memory.rates, &*memory.decays].map(|of| columns::load(level, of, at));
            let mut gradient = columns::load(level, memory.gradient, at);
            let mut of_rate = columns::load(level, memory.of_rates, at);
            let (of_value, of_step) = (&mut of_value[j % 2], &mut of_step[j % 2]);
            // dS += q ⊗ dy. The gradients of q and k are S dy and dS v, that of v is dSᵀ k.
            for c in 0..2 {
                gradient[c] = level.multiply_add(q, dy[c], gradient[c]);
                of_value[c] = level.multiply_add(k, gradient[c], of_value[c]);
            }
            let of_query = level.multiply_add(s[0], dy[0], level.multiply(s[1], dy[1]));
            let of_key = level.multiply(gradient[1], value[1]);
            let of_key = level.multiply_add(gradient[0], value[0], of_key);
            store_vector(level, of_query, memory.of_query, j * L::LANES);
            store_vector(level, of_key, memory.of_key, j * L::LANES);
            // The logarithm of the decay is rate · step; its gradient is dS · decay · S.
            for c in 0..2 {
                gradient[c] = level.multiply(decay[c], gradient[c]);
                let of_logarithm = level.multiply(gradient[c], s_before[c]);
                of_step[c] = level.multiply_add(rate[c], of_logarithm, of_step[c]);
                of_rate[c] = level.multiply_add(step[c], of_logarithm, of_rate[c]);
            }
            columns::store(level, gradient, memory.gradient, at);
            columns::store(level, of_rate, memory.of_rates, at);
        }
        let row = row as usize;
        let of_columns = [(&self.to.value, of_value), (&self.to.step, of_step)];
        for (to, sums) in of_columns {
            let sum = columns::add(level, sums[0], sums[1]);
            // SAFETY: only this task writes its columns.
            let to = unsafe { to.piece(row, columns.range.clone()) };
            columns::store_some(level, sum, to);
        }
        let of_parts = self.parts.iter().zip([&*memory.of_query, &*memory.of_key]);
        for (to, products) in of_parts {
            let at = self.part * of.n_rows() + row;
            // SAFETY: only this task writes its part of the sums.
            add_row_sums(level, products, unsafe { to.piece(at, 0..of.state_dim) });
        }
    }
}
