//! A recurrence's gradients. The states within a chunk are computed again from the snapshot before it.

use super::columns::{self, Channels, Columns, Factors, Pair, Rule, StateRows};
use super::forward::{StateHeads, Typed};
use super::states::{CHUNK, first_snapshots};
use crate::cpu::Cpu;
use crate::memory::scratch::{lend, scratch};
use crate::threads::{Target, parallel};
use crate::vectors::{
    Level, LevelTask, MAX_LANES, Real, Slice, SliceMut, Stored, Vectors, columns_at_once,
};

scratch! {
    /// A task's states and their gradients.
    STATES
}

impl<T: Stored + Real> Typed<'_, T>
where
    for<'a> Backward<'a, T>: LevelTask,
{
    pub fn backward(&self, cpu: Cpu, snapshots: Slice, dy: Slice, gradients: [SliceMut; 5]) {
        let StateHeads {
            n_keys,
            n_values,
            key_dim,
            value_dim,
        } = self.heads;
        let rows = self.n_rows();
        let target = |of, width| Target::row_major(T::of_slice_mut(of), rows, width);
        let [query, key, value, decay, write] = gradients;
        let gradients = Targets {
            query: target(query, n_keys * key_dim),
            key: target(key, n_keys * key_dim),
            value: target(value, n_values * value_dim),
            decay: target(decay, self.decay_width()),
            write: target(write, n_values),
        };
        let firsts = first_snapshots(self.sequences);
        let threads = cpu.for_work(4 * self.work()).threads;
        parallel::for_tasks(threads, self.sequences.len() * n_keys, |task| {
            let (sequence, key_head) = (task / n_keys, task % n_keys);
            lend(STATES, Memory::<T>::len(key_dim), |memory| {
                cpu.isa.enter(Backward {
                    of: self,
                    at: (sequence, key_head),
                    memory,
                    snapshots: T::of_slice(snapshots),
                    first_snapshot: firsts[sequence],
                    dy: T::of_slice(dy),
                    gradients: &gradients,
                });
            });
        });
    }
}

/// The gradients that tasks write, each for its own heads.
struct Targets<'a, T> {
    query: Target<'a, T>,
    key: Target<'a, T>,
    value: Target<'a, T>,
    decay: Target<'a, T>,
    write: Target<'a, T>,
}

/// The backward pass for the value heads that share a key head, in one sequence.
pub(super) struct Backward<'a, T> {
    of: &'a Typed<'a, T>,
    /// The sequence and the key head.
    at: (usize, usize),
    memory: &'a mut [T],
    snapshots: &'a [T],
    first_snapshot: usize,
    dy: &'a [T],
    gradients: &'a Targets<'a, T>,
}

/// A task's memory, for two vectors of columns.
struct Memory<'a, T> {
    /// The states before each position in a chunk and after the last, `[CHUNK + 1, key_dim, lanes]`.
    states: &'a mut [T],
    /// The values that a chunk's positions write, without the factor `β`: `v - α Sᵀ k` or `v`, `[CHUNK, lanes]`.
    errors: &'a mut [T],
    /// The state's gradient, `[key_dim, lanes]`.
    gradient: &'a mut [T],
    /// Products for the query's gradient, a vector for each row, up to a whole square.
    of_query: &'a mut [T],
    /// The same for the key.
    of_key: &'a mut [T],
    /// The same for the logarithms, if each row of the state has its own.
    of_decay: &'a mut [T],
    channels: Channels<'a, T>,
}

impl<'a, T: Real> Memory<'a, T> {
    fn len(key_dim: usize) -> usize {
        let lanes = 2 * MAX_LANES;
        let squares = key_dim.next_multiple_of(MAX_LANES) * MAX_LANES;
        (CHUNK + 2) * key_dim * lanes + CHUNK * lanes + 3 * squares + Channels::<T>::len(key_dim)
    }

    #[inline(always)]
    fn divided<L: Vectors<T>>(memory: &'a mut [T], key_dim: usize) -> Self {
        let lanes = 2 * L::LANES;
        let squares = key_dim.next_multiple_of(L::LANES) * L::LANES;
        let (states, rest) = memory.split_at_mut((CHUNK + 1) * key_dim * lanes);
        let (gradient, rest) = rest.split_at_mut(key_dim * lanes);
        let (errors, rest) = rest.split_at_mut(CHUNK * lanes);
        let (of_query, rest) = rest.split_at_mut(squares);
        let (of_key, rest) = rest.split_at_mut(squares);
        let (of_decay, rest) = rest.split_at_mut(squares);
        Self {
            states,
            errors,
            gradient,
            of_query,
            of_key,
            of_decay,
            channels: Channels::new(&mut rest[..Channels::<T>::len(key_dim)], key_dim),
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

impl<'a, T: Real> Backward<'a, T> {
    #[inline(always)]
    fn run<L: Vectors<T>>(mut self, level: L) {
        let heads = self.of.heads;
        let group = heads.group();
        let memory = std::mem::take(&mut self.memory);
        let mut memory = Memory::divided::<L>(memory, heads.key_dim);
        memory.of_query.fill(T::ZERO);
        memory.of_key.fill(T::ZERO);
        memory.of_decay.fill(T::ZERO);
        let (sequence, key_head) = self.at;
        let rows = &self.of.sequences[sequence][..];
        for head in key_head * group..(key_head + 1) * group {
            for columns in columns::all::<T, L>(heads.value_dim) {
                memory.gradient.fill(T::ZERO);
                for (chunk, rows) in rows.chunks(CHUNK).enumerate().rev() {
                    let first = self.first_snapshot + chunk;
                    self.states_again(level, (first, head), rows, &columns, &mut memory);
                    for (i, &row) in rows.iter().enumerate().rev() {
                        self.position(level, head, (i, row), &columns, &mut memory);
                    }
                }
            }
        }
    }

    /// Computes a chunk's states and errors from the snapshot before it.
    #[inline(always)]
    fn states_again<L: Vectors<T>>(
        &self,
        level: L,
        (snapshot, head): (usize, usize),
        rows: &[u32],
        columns: &Columns,
        memory: &mut Memory<T>,
    ) {
        let StateHeads {
            n_values,
            key_dim,
            value_dim,
            ..
        } = self.of.heads;
        let key_head = self.at.1;
        let heads = [head, key_head];
        let lanes = 2 * L::LANES;
        let len = key_dim * lanes;
        let at = (snapshot * n_values + head) * key_dim * value_dim;
        let from = self.snapshots[at..at + key_dim * value_dim].chunks_exact(value_dim);
        for (from, to) in from.zip(memory.states[..len].chunks_exact_mut(lanes)) {
            columns::store(level, columns.vectors(level, from), to, 0);
        }
        let mut reads = [level.splat(T::ZERO); 2];
        let channels = &mut memory.channels;
        if self.of.rule.reads() {
            let first = rows.first().copied();
            self.of.go_on(first, heads, channels);
            let key = self.of.reading(first, key_head, channels);
            let state = StateRows::dense::<L>(&mut memory.states[..len]);
            // SAFETY: a state has a row for each element in a key.
            reads = unsafe { columns::read(level, state, key) };
        }
        for (i, &row) in rows.iter().enumerate() {
            let next = rows.get(i + 1).copied();
            self.of.go_on(next, heads, channels);
            let (decay, write) = self.of.factors(row, head);
            let value = columns.vectors(level, self.of.value(row, head));
            let error = columns::error(level, value, decay, reads);
            columns::store(level, error, memory.errors, i * lanes);
            let delta = columns::times(level, write, error);
            let key = self.of.key(row, key_head);
            let next = self.of.reading(next, key_head, channels);
            let factors = channels.factors(self.of.rule, decay);
            let (state, after) = memory.states[i * len..(i + 2) * len].split_at_mut(len);
            let states = [state, after].map(StateRows::dense::<L>);
            let keys = [key, key, next];
            // SAFETY: both states have a row for each element in a key, one state after the other.
            [_, reads] =
                unsafe { columns::update(level, self.of.rule, states, keys, factors, delta) };
        }
    }

    /// Adds a position's gradients, and replaces the later state's gradient by the earlier one's.
    #[inline(always)]
    fn position<L: Vectors<T>>(
        &self,
        level: L,
        head: usize,
        (i, row): (usize, u32),
        columns: &Columns,
        memory: &mut Memory<T>,
    ) {
        let heads = self.of.heads;
        let key_head = self.at.1;
        let lanes = 2 * L::LANES;
        let len = heads.key_dim * lanes;
        let (decay, write) = self.of.factors(row, head);
        let error = columns::load(level, memory.errors, i * lanes);
        let delta = columns::times(level, write, error);
        let dy = columns.vectors(level, self.of.of_value_head(self.dy, row, head));
        let [key, query] = [self.of.key(row, key_head), self.of.query(row, key_head)];
        let (before, after) = memory.states[i * len..(i + 2) * len].split_at(len);

        // dS += q ⊗ dy. The gradients of q and k are S dy and dS δ, that of δ is dSᵀ k.
        let zero = level.splat(T::ZERO);
        let mut of_delta = [[zero; 2]; 2];
        for (j, (&k, &q)) in key.iter().zip(query).enumerate() {
            let (k, q) = (level.splat(k), level.splat(q));
            let mut gradient = columns::load(level, memory.gradient, j * lanes);
            let s = columns::load(level, after, j * lanes);
            let sum = &mut of_delta[j % 2];
            for c in 0..2 {
                gradient[c] = level.multiply_add(q, dy[c], gradient[c]);
                sum[c] = level.multiply_add(k, gradient[c], sum[c]);
            }
            columns::store(level, gradient, memory.gradient, j * lanes);
            let of_query = level.multiply_add(s[0], dy[0], level.multiply(s[1], dy[1]));
            let of_key = level.multiply(gradient[1], delta[1]);
            let of_key = level.multiply_add(gradient[0], delta[0], of_key);
            store_vector(level, of_query, memory.of_query, j * L::LANES);
            store_vector(level, of_key, memory.of_key, j * L::LANES);
        }
        let of_delta = columns::add(level, of_delta[0], of_delta[1]);
        let of_error = columns::times(level, write, of_delta);

        // By a delta rule, the error reads α S by the key: the gradient of α S is dS - k ⊗ de.
        let factor = match self.of.rule.reads() {
            true => -T::of(1.0),
            false => T::ZERO,
        };
        let minus = columns::times(level, factor, of_error);
        let is_each = self.of.rule == Rule::ChannelDelta;
        let channels = &mut memory.channels;
        self.of.go_on(Some(row), [head, key_head], channels);
        channels.end();
        let each = match channels.factors(self.of.rule, decay) {
            Factors::Each(each) => each,
            Factors::One(_) => &[],
        };
        let mut factor = level.splat(decay);
        let mut decayed = columns::times(level, decay, minus);
        let mut of_decay = [zero; 2];
        for (j, &k) in key.iter().enumerate() {
            if let Some(&own) = each.get(j) {
                factor = level.splat(own);
                decayed = columns::times(level, own, minus);
            }
            let k = level.splat(k);
            let s = columns::load(level, before, j * lanes);
            let mut gradient = columns::load(level, memory.gradient, j * lanes);
            let mut of_key = load_vector(level, memory.of_key, j * L::LANES);
            let mut of_row = [zero; 2];
            for c in 0..2 {
                of_key = level.multiply_add(s[c], decayed[c], of_key);
                gradient[c] = level.multiply_add(k, minus[c], gradient[c]);
                let sum = if is_each { &mut of_row } else { &mut of_decay };
                sum[c] = level.multiply_add(gradient[c], s[c], sum[c]);
                gradient[c] = level.multiply(factor, gradient[c]);
            }
            columns::store(level, gradient, memory.gradient, j * lanes);
            store_vector(level, of_key, memory.of_key, j * L::LANES);
            if is_each {
                let of_row = level.multiply(factor, level.add(of_row[0], of_row[1]));
                store_vector(level, of_row, memory.of_decay, j * L::LANES);
            }
        }

        let row = row as usize;
        let of_keys = key_head * heads.key_dim..(key_head + 1) * heads.key_dim;
        // SAFETY: only this task writes the gradients of its heads in the rows of its sequence.
        unsafe {
            let gradients = self.gradients;
            add_row_sums(
                level,
                memory.of_query,
                gradients.query.piece(row, of_keys.clone()),
            );
            add_row_sums(level, memory.of_key, gradients.key.piece(row, of_keys));
            let of_value = columns.of_head(head, heads.value_dim);
            columns::store_some(level, of_error, gradients.value.piece(row, of_value));
            if is_each {
                let of_head = head * heads.key_dim..(head + 1) * heads.key_dim;
                add_row_sums(level, memory.of_decay, gradients.decay.piece(row, of_head));
            } else {
                let sum = decay * total(level, of_decay);
                gradients.decay.piece(row, head..head + 1)[0] += sum;
            }
            let sum = total(level, product(level, of_delta, error));
            gradients.write.piece(row, head..head + 1)[0] += sum;
        }
    }
}

#[inline(always)]
fn product<T: Real, L: Vectors<T>>(
    level: L,
    a: Pair<L::Vector>,
    b: Pair<L::Vector>,
) -> Pair<L::Vector> {
    [level.multiply(a[0], b[0]), level.multiply(a[1], b[1])]
}

/// Returns the sum over all elements in a pair.
#[inline(always)]
fn total<T: Real, L: Vectors<T>>(level: L, of: Pair<L::Vector>) -> T {
    let mut memory = [T::ZERO; 2 * MAX_LANES];
    columns::store(level, of, &mut memory, 0);
    let mut sum = T::ZERO;
    for &element in &memory[..2 * L::LANES] {
        sum += element;
    }
    sum
}

#[inline(always)]
fn load_vector<T: Real, L: Vectors<T>>(level: L, from: &[T], at: usize) -> L::Vector {
    assert!(at + L::LANES <= from.len());
    // SAFETY: a vector from `at` on is within the slice, by the assertion.
    unsafe { level.load(from.as_ptr().add(at)) }
}

#[inline(always)]
pub(super) fn store_vector<T: Real, L: Vectors<T>>(
    level: L,
    of: L::Vector,
    to: &mut [T],
    at: usize,
) {
    assert!(at + L::LANES <= to.len());
    // SAFETY: a vector from `at` on is within the slice, by the assertion.
    unsafe { level.store(of, to.as_mut_ptr().add(at)) };
}

/// Adds each vector's sum in `rows` to an element in `to`. The rows are whole squares.
#[inline(always)]
pub(super) fn add_row_sums<T: Real, L: Vectors<T>>(level: L, rows: &[T], to: &mut [T]) {
    let square = L::LANES * L::LANES;
    assert!(rows.len() == to.len().next_multiple_of(L::LANES) * L::LANES);
    for (rows, to) in rows.chunks_exact(square).zip(to.chunks_mut(L::LANES)) {
        // Four sums have smaller rounding errors than one.
        let mut quarters = [level.splat(T::ZERO); 4];
        for column in (0..L::LANES).step_by(columns_at_once::<T>()) {
            // SAFETY: a square has `LANES` rows of `LANES` elements.
            unsafe {
                let from = rows.as_ptr().add(column);
                level.for_columns(from, L::LANES, |i, column| {
                    quarters[i] = level.add(quarters[i], column);
                });
            }
        }
        let [a, b, c, d] = quarters;
        let sum = level.add(level.add(a, b), level.add(c, d));
        let mut sums = [T::ZERO; 2 * MAX_LANES];
        store_vector(level, sum, &mut sums, 0);
        for (to, &sum) in to.iter_mut().zip(&sums) {
            *to += sum;
        }
    }
}
