//! A recurrence, position by position.
//!
//! A state's columns do not depend on each other. Two vectors of them stay in the first-level cache for all positions, so
//! that each position costs four operations for an element, about as many as a form with products for chunks takes
//! (Yang et al. 2024, <https://arxiv.org/abs/2406.06484>). A sequence in pieces has the same bits as in one piece.

use super::columns::{self, Channels, Columns, Memory, Rule, StateRows};
use super::states::{StateKernel, States, TypedStates};
use crate::cpu::Cpu;
use crate::memory::scratch::{lend, scratch};
use crate::threads::{Target, parallel};
use crate::vectors::{Level, LevelTask, Real, Slice, SliceMut, Stored, Vectors};

/// A recurrence's heads. A key head serves `n_values / n_keys` value heads, each with a state `[key_dim, value_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateHeads {
    /// How many heads queries and keys have.
    pub n_keys: usize,
    /// How many heads values and states have.
    pub n_values: usize,
    /// The width for queries and keys.
    pub key_dim: usize,
    /// The width for values.
    pub value_dim: usize,
}

impl StateHeads {
    /// Returns how many elements one sequence's states have.
    pub fn state_len(&self) -> usize {
        self.n_values * self.key_dim * self.value_dim
    }

    /// Returns how many logarithms of factors `α` a row has by a rule.
    pub fn decay_width(&self, rule: Rule) -> usize {
        match rule {
            Rule::Delta | Rule::Sum => self.n_values,
            Rule::ChannelDelta => self.n_values * self.key_dim,
        }
    }

    /// Returns how many value heads a key head serves.
    pub(super) fn group(&self) -> usize {
        self.n_values / self.n_keys
    }
}

/// A recurrence over several sequences' rows, in f32 or f64. Its result is `y`, `[rows, n_values · value_dim]`, its states are
/// `[n_values, key_dim, value_dim]`. For each value head, `S = α S + k ⊗ ..` by its [`Rule`] and `y = Sᵀ q`, where
/// `α = exp(decay)` and `β = write`. By [`Rule::ChannelDelta`] each row of a state has a factor `α`.
#[derive(Clone, Copy, Debug)]
pub struct Recurrence<'a> {
    /// The term that each position adds.
    pub rule: Rule,
    /// The heads and their widths.
    pub heads: StateHeads,
    /// The queries `q`, `[rows, n_keys · key_dim]`.
    pub query: Slice<'a>,
    /// The keys `k`, `[rows, n_keys · key_dim]`.
    pub key: Slice<'a>,
    /// The values `v`, `[rows, n_values · value_dim]`.
    pub value: Slice<'a>,
    /// The logarithms for the factors `α`, `[rows, n_values]`, or `[rows, n_values · key_dim]`: negative or 0.
    pub decay: Slice<'a>,
    /// The factors `β`, `[rows, n_values]`.
    pub write: Slice<'a>,
    /// Each sequence's rows, in order.
    pub sequences: &'a [Vec<u32>],
}

/// [`Recurrence`] in one type.
#[derive(Clone, Copy)]
pub(super) struct Typed<'a, T> {
    pub rule: Rule,
    pub heads: StateHeads,
    query: &'a [T],
    key: &'a [T],
    value: &'a [T],
    decay: &'a [T],
    write: &'a [T],
    pub sequences: &'a [Vec<u32>],
}

scratch! {
    /// A task's columns.
    STATE
}

impl StateKernel for Recurrence<'_> {
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

impl Recurrence<'_> {
    pub(super) fn typed<T: Stored>(&self) -> Typed<'_, T> {
        let typed = Typed {
            rule: self.rule,
            heads: self.heads,
            query: T::of_slice(self.query),
            key: T::of_slice(self.key),
            value: T::of_slice(self.value),
            decay: T::of_slice(self.decay),
            write: T::of_slice(self.write),
            sequences: self.sequences,
        };
        typed.check();
        typed
    }
}

impl<T> Typed<'_, T> {
    fn check(&self) {
        let StateHeads {
            n_keys,
            n_values,
            key_dim,
            value_dim,
        } = self.heads;
        assert!(n_keys > 0 && n_values.is_multiple_of(n_keys) && key_dim > 0 && value_dim > 0);
        let rows = self.n_rows();
        assert_eq!(self.query.len(), rows * n_keys * key_dim);
        assert_eq!(self.key.len(), self.query.len());
        assert_eq!(self.value.len(), rows * n_values * value_dim);
        assert_eq!(self.write.len(), rows * n_values);
        assert_eq!(self.decay.len(), rows * self.decay_width());
    }

    /// Returns how many logarithms of factors a row has.
    pub fn decay_width(&self) -> usize {
        self.heads.decay_width(self.rule)
    }

    pub fn n_rows(&self) -> usize {
        self.write.len() / self.heads.n_values
    }

    /// Returns the multiplications in the forward pass.
    pub fn work(&self) -> usize {
        let positions: usize = self.sequences.iter().map(Vec::len).sum();
        4 * positions * self.heads.state_len()
    }

    pub fn query(&self, row: u32, key_head: usize) -> &[T] {
        let StateHeads {
            n_keys, key_dim, ..
        } = self.heads;
        of_head(self.query, row, (key_head, n_keys), key_dim)
    }

    pub fn key(&self, row: u32, key_head: usize) -> &[T] {
        let StateHeads {
            n_keys, key_dim, ..
        } = self.heads;
        of_head(self.key, row, (key_head, n_keys), key_dim)
    }

    pub fn value(&self, row: u32, head: usize) -> &[T] {
        self.of_value_head(self.value, row, head)
    }

    /// Returns the logarithms of a state's rows.
    pub fn logarithms(&self, row: u32, head: usize) -> &[T] {
        let StateHeads {
            n_values, key_dim, ..
        } = self.heads;
        of_head(self.decay, row, (head, n_values), key_dim)
    }

    /// Returns a value head's part of a row with all value heads.
    pub fn of_value_head<'r>(&self, rows: &'r [T], row: u32, head: usize) -> &'r [T] {
        let StateHeads {
            n_values,
            value_dim,
            ..
        } = self.heads;
        of_head(rows, row, (head, n_values), value_dim)
    }
}

/// Returns one of `n` heads in a row.
fn of_head<T>(rows: &[T], row: u32, (head, n): (usize, usize), width: usize) -> &[T] {
    let at = row as usize * n + head;
    &rows[at * width..][..width]
}

impl<T: Real> Typed<'_, T> {
    /// Returns `α` and `β`, with `α = 1` if each row of the state has its own.
    #[inline(always)]
    pub fn factors(&self, row: u32, head: usize) -> (T, T) {
        let at = row as usize * self.heads.n_values + head;
        let decay = match self.rule {
            Rule::ChannelDelta => T::of(1.0),
            Rule::Delta | Rule::Sum => self.decay[at].exp(),
        };
        (decay, self.write[at])
    }

    /// Goes on to a later position's factors, if each row of the state has its own.
    #[inline(always)]
    pub fn go_on(
        &self,
        row: Option<u32>,
        [head, key_head]: [usize; 2],
        channels: &mut Channels<T>,
    ) {
        match (self.rule, row) {
            (Rule::Delta | Rule::Sum, _) => {}
            (Rule::ChannelDelta, None) => channels.end(),
            (Rule::ChannelDelta, Some(row)) => {
                channels.go_on(self.logarithms(row, head), self.key(row, key_head));
            }
        }
    }

    /// Returns the key by which the error of the later position reads the state: zeros if there is none.
    #[inline(always)]
    pub fn reading<'k>(
        &'k self,
        row: Option<u32>,
        key_head: usize,
        channels: &'k Channels<T>,
    ) -> &'k [T] {
        match (self.rule, row) {
            (Rule::Delta | Rule::Sum, Some(row)) => self.key(row, key_head),
            _ => channels.key(),
        }
    }
}

impl<T: Stored + Real> Typed<'_, T>
where
    for<'a> Forward<'a, T>: LevelTask,
{
    fn forward(&self, cpu: Cpu, states: States, y: SliceMut) {
        let StateHeads {
            n_values,
            key_dim,
            value_dim,
            ..
        } = self.heads;
        let dims = [n_values * key_dim, value_dim];
        let states = TypedStates::new(self.sequences, dims, states);
        let y = rows_of(self.sequences, self.n_rows(), n_values * value_dim, y);
        let threads = cpu.for_work(self.work()).threads;
        parallel::for_tasks(threads, self.sequences.len() * n_values, |task| {
            let (sequence, head) = (task / n_values, task % n_values);
            lend(STATE, columns::memory_len(key_dim), |memory| {
                cpu.isa.enter(Forward {
                    of: self,
                    at: (sequence, head),
                    memory,
                    states: &states,
                    y: &y,
                });
            });
        });
    }
}

/// Returns the places of the rows of `y`, which become zeros if some are outside all sequences.
pub(super) fn rows_of<'a, T: Stored + Real>(
    sequences: &[Vec<u32>],
    n_rows: usize,
    width: usize,
    y: SliceMut<'a>,
) -> Target<'a, T> {
    let y = T::of_slice_mut(y);
    if sequences.iter().map(Vec::len).sum::<usize>() < n_rows {
        y.fill(T::ZERO);
    }
    Target::row_major(y, n_rows, width)
}

/// The forward pass for one head in one sequence.
pub(super) struct Forward<'a, T> {
    of: &'a Typed<'a, T>,
    /// The sequence and the value head.
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

impl<T: Real> Forward<'_, T> {
    #[inline(always)]
    fn run<L: Vectors<T>>(self, level: L) {
        let (sequence, head) = self.at;
        let StateHeads {
            key_dim, value_dim, ..
        } = self.of.heads;
        let key_head = head / self.of.heads.group();
        let rows = &self.of.sequences[sequence][..];
        let first = rows.first().copied();
        let of_state = (sequence, head * key_dim);
        let Memory {
            state,
            mut channels,
        } = Memory::divided::<L>(self.memory, key_dim);
        let heads = [head, key_head];
        for columns in columns::all::<T, L>(value_dim) {
            let in_place = self.states.in_place(&columns, of_state, rows.len());
            if in_place.is_none() {
                self.states.load(level, &columns, of_state, state);
            }
            let mut reads = [level.splat(T::ZERO); 2];
            if self.of.rule.reads() {
                self.of.go_on(first, heads, &mut channels);
                let key = self.of.reading(first, key_head, &channels);
                let [state, _] = in_place.unwrap_or([StateRows::dense::<L>(state); 2]);
                // SAFETY: a state has a row for each element in a key.
                reads = unsafe { columns::read(level, state, key) };
            }
            for (i, &row) in rows.iter().enumerate() {
                self.states.keep(level, &columns, of_state, i, state);
                let next = rows.get(i + 1).copied();
                self.of.go_on(next, heads, &mut channels);
                let (decay, write) = self.of.factors(row, head);
                let value = columns.vectors(level, self.of.value(row, head));
                let error = columns::error(level, value, decay, reads);
                let delta = columns::times(level, write, error);
                let key = self.of.key(row, key_head);
                let next = self.of.reading(next, key_head, &channels);
                let keys = [key, self.of.query(row, key_head), next];
                let factors = channels.factors(self.of.rule, decay);
                let y;
                let states = in_place.unwrap_or([StateRows::dense::<L>(state); 2]);
                // SAFETY: as above. This task alone writes the state after, apart from the one before.
                [y, reads] =
                    unsafe { columns::update(level, self.of.rule, states, keys, factors, delta) };
                let to = columns.of_head(head, value_dim);
                // SAFETY: only this task writes this head's columns in the rows of its sequence.
                let to = unsafe { self.y.piece(row as usize, to) };
                columns::store_some(level, y, to);
            }
            if in_place.is_none() {
                self.states.store(level, &columns, of_state, state);
            }
        }
    }
}

impl Columns {
    /// Returns the same columns in a row with all heads.
    pub(super) fn of_head(&self, head: usize, value_dim: usize) -> std::ops::Range<usize> {
        head * value_dim + self.range.start..head * value_dim + self.range.end
    }
}
