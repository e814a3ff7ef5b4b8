//! Heads in the rows of a projection, in any type, and products of them on the calling thread.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::products::{Epilogue, Plain, View, multiply_views};
use crate::vectors::{Slice, Stored};

/// Query, key or value heads: one row per position, in which head `h` starts at column `offset + h · head_dim`.
#[derive(Clone, Copy, Debug)]
pub struct HeadRows<'a> {
    /// All rows.
    pub data: Slice<'a>,
    /// Positions per sequence.
    pub seq: usize,
    /// Head count.
    pub heads: usize,
    /// Dimensions per head.
    pub head_dim: usize,
    /// The distance between rows, in elements.
    pub row_stride: usize,
    /// Head 0's first column.
    pub offset: usize,
}

impl<'a> HeadRows<'a> {
    /// Returns one head in one sequence, `[seq, head_dim]`.
    pub(super) fn head<T: Stored>(&self, sequence: usize, head: usize) -> View<'a, T> {
        self.positions((sequence, head), 0..self.seq)
    }

    /// Returns some positions in one sequence and head, `[positions, head_dim]`.
    pub(super) fn positions<T: Stored>(
        &self,
        (sequence, head): (usize, usize),
        positions: Range<usize>,
    ) -> View<'a, T> {
        let data = T::of_slice(self.data);
        let row = sequence * self.seq + positions.start;
        let start = row * self.row_stride + self.offset + head * self.head_dim;
        View::new(
            data.get(start..).unwrap_or(&[]),
            (positions.len(), self.head_dim),
            (self.row_stride, 1),
        )
    }
}

/// Returns contiguous rows as a matrix `[data.len() / width, width]`.
pub(super) fn rows<T: Copy>(data: &[T], width: usize) -> View<'_, T> {
    View::row_major(data, data.len() / width.max(1), width)
}

/// Computes `y = a·b` on the calling thread, because tasks already run in parallel.
pub(super) fn multiply<T: Plain>(cpu: Cpu, a: View<T>, b: View<T>, y: &mut [T]) {
    multiply_views(cpu.alone(), a, b, &Epilogue::NONE, y);
}
