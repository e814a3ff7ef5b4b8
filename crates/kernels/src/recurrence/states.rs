//! The states before and after a forward pass, and the snapshots between them.

use super::columns::{Columns, StateRows};
use crate::cpu::Cpu;
use crate::threads::Target;
use crate::vectors::{Real, Slice, SliceMut, Stored, Vectors};

/// The positions from one snapshot to the next. The backward pass computes the states between them again.
pub const CHUNK: usize = 64;

/// The states that a forward pass reads and writes, one for each sequence.
#[derive(Debug)]
pub struct States<'a> {
    /// The states before the first positions; zeros if absent.
    pub before: Option<Slice<'a>>,
    /// Receives the states after the last positions.
    pub after: SliceMut<'a>,
    /// Receives the states before every [`CHUNK`] positions, sequence by sequence, for a backward pass.
    pub snapshots: Option<SliceMut<'a>>,
}

/// A kernel over several sequences' rows, whose inputs have one type: f32 or f64.
pub trait StateKernel {
    /// Computes the result and the states after. Rows outside all sequences become zeros.
    ///
    /// # Panics
    /// If lengths or types do not match, or a sequence names a row that does not exist.
    fn forward(&self, cpu: Cpu, states: States, y: SliceMut);

    /// Computes the inputs' gradients, in their order, from `y`'s gradient and the snapshots that [`Self::forward`] takes. The
    /// gradients are zeros before. The states after the last position have no gradient.
    ///
    /// # Panics
    /// If lengths or types do not match.
    fn backward(&self, cpu: Cpu, snapshots: Slice, dy: Slice, gradients: [SliceMut; 5]);
}

/// Returns how many snapshots a training pass takes.
pub fn n_snapshots(sequences: &[Vec<u32>]) -> usize {
    sequences.iter().map(|rows| snapshots_of(rows)).sum()
}

/// Returns each sequence's first snapshot.
pub(super) fn first_snapshots(sequences: &[Vec<u32>]) -> Vec<usize> {
    let mut next = 0;
    let of = |rows: &Vec<u32>| {
        let first = next;
        next += snapshots_of(rows);
        first
    };
    sequences.iter().map(of).collect()
}

fn snapshots_of(rows: &[u32]) -> usize {
    rows.len().div_ceil(CHUNK)
}

/// [`States`] in one type.
pub(super) struct TypedStates<'a, T> {
    before: Option<&'a [T]>,
    after: Target<'a, T>,
    snapshots: Option<Target<'a, T>>,
    /// Each sequence's first snapshot.
    firsts: Vec<usize>,
    /// The rows in a sequence's state, and their width.
    dims: [usize; 2],
}

impl<'a, T: Stored> TypedStates<'a, T> {
    pub fn new(sequences: &[Vec<u32>], dims: [usize; 2], states: States<'a>) -> Self {
        let [rows, width] = dims;
        let target = |of, n: usize| Target::row_major(T::of_slice_mut(of), n * rows, width);
        let n = sequences.len();
        let before = states.before.map(T::of_slice);
        assert!(before.is_none_or(|before| before.len() == n * rows * width));
        let snapshots = states.snapshots;
        Self {
            before,
            after: target(states.after, n),
            snapshots: snapshots.map(|all| target(all, n_snapshots(sequences))),
            firsts: first_snapshots(sequences),
            dims,
        }
    }
}

impl<T: Real> TypedStates<'_, T> {
    /// Loads columns of the state before a sequence, in as many rows as `state` has, from a row on.
    #[inline(always)]
    pub fn load<L: Vectors<T>>(
        &self,
        level: L,
        columns: &Columns,
        (sequence, first): (usize, usize),
        state: &mut [T],
    ) {
        let [rows, width] = self.dims;
        match self.before {
            Some(before) => {
                let rows = before[(sequence * rows + first) * width..].chunks_exact(width);
                columns.load(level, rows, state);
            }
            None => state.fill(T::ZERO),
        }
    }

    /// Returns whole columns of the states before and after a sequence with one position, from a row on, if there is a state
    /// before and no snapshot.
    #[inline(always)]
    pub fn in_place(
        &self,
        columns: &Columns,
        (sequence, first): (usize, usize),
        n_positions: usize,
    ) -> Option<[StateRows<T>; 2]> {
        if n_positions != 1 || self.snapshots.is_some() || !columns.is_whole() {
            return None;
        }
        let ([rows, stride], before) = (self.dims, self.before?);
        let (first, column) = (sequence * rows + first, columns.range.start);
        let before = before[first * stride + column..].as_ptr().cast_mut();
        let after = self.after.address(first, column);
        Some([before, after].map(|start| StateRows { start, stride }))
    }

    /// Stores columns of the state after a sequence, from a row on.
    #[inline(always)]
    pub fn store<L: Vectors<T>>(
        &self,
        level: L,
        columns: &Columns,
        (sequence, first): (usize, usize),
        state: &[T],
    ) {
        columns.store(level, state, &self.after, sequence * self.dims[0] + first);
    }

    /// Stores columns of the state before a position as a snapshot, if one is wanted there.
    #[inline(always)]
    pub fn keep<L: Vectors<T>>(
        &self,
        level: L,
        columns: &Columns,
        (sequence, first): (usize, usize),
        position: usize,
        state: &[T],
    ) {
        if let Some(all) = &self.snapshots
            && position.is_multiple_of(CHUNK)
        {
            let at = self.firsts[sequence] + position / CHUNK;
            columns.store(level, state, all, at * self.dims[0] + first);
        }
    }
}
