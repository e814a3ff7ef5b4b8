//! The input rows of a product: unchanged, normalized, or with reordered columns.

use std::ops::Range;

use crate::cpu::Cpu;
use crate::memory::{lend, scratch::scratch};
use crate::rows::norm::kind::{Affine, Norm};
use crate::threads::{Target, parallel};
use crate::vectors::{Isa, prefetch};

/// Contiguous f32 rows, with an optional norm for each row, and an optional column order applied after it.
#[derive(Clone, Copy)]
pub struct Source<'a> {
    rows: &'a [f32],
    width: usize,
    norm: Option<&'a RowNorm>,
    order: Option<&'a [u32]>,
}

/// A norm with its weight and bias, widened once.
#[derive(Clone, Debug)]
pub struct RowNorm {
    norm: Norm,
    affine: Affine<f64>,
}

scratch! {
    /// A normalized row.
    NORMALIZED_ROW
}

scratch! {
    /// A reordered row.
    ORDERED_ROW
}

/// Rows per task.
const ROWS: usize = 16;

impl RowNorm {
    /// Creates a norm from its stored weight and bias.
    pub fn new(norm: Norm, weight: &[f32], bias: Option<&[f32]>) -> Self {
        Self {
            norm,
            affine: norm.affine(weight, bias),
        }
    }

    /// Returns the row length.
    pub fn width(&self) -> usize {
        self.affine.width()
    }

    /// Writes row `x`, normalized, to `y`.
    pub fn row(&self, isa: Isa, x: &[f32], y: &mut [f32]) {
        self.norm.row(isa, x, &self.affine, y);
    }

    /// Normalizes a row in place.
    pub fn row_in_place(&self, isa: Isa, row: &mut [f32]) {
        self.norm.row_in_place(isa, row, &self.affine);
    }

    /// Normalizes each row in `rows` in place.
    pub fn rows_in_place(&self, cpu: Cpu, rows: &mut [f32]) {
        let width = self.width();
        let threads = cpu.for_elements(rows.len()).threads;
        parallel::for_chunks(threads, rows, ROWS * width, |_, rows| {
            let mut rest = rows;
            while let Some(row) = rest.split_off_mut(..width) {
                prefetch::all(&rest[..width.min(rest.len())]);
                self.row_in_place(cpu.isa, row);
            }
        });
    }
}

impl<'a> Source<'a> {
    /// Creates a source with unchanged rows of `width` elements.
    pub fn new(rows: &'a [f32], width: usize) -> Self {
        assert!(width > 0 && rows.len().is_multiple_of(width));
        Self {
            rows,
            width,
            norm: None,
            order: None,
        }
    }

    /// Returns the same rows, with a norm for each.
    pub fn with_norm(self, norm: Option<&'a RowNorm>) -> Self {
        assert!(norm.is_none_or(|norm| norm.width() == self.width));
        Self { norm, ..self }
    }

    /// Returns the same rows with reordered columns: column `i` is the original column `order[i]`.
    pub fn in_order(self, order: Option<&'a [u32]>) -> Self {
        assert!(order.is_none_or(|order| order.len() == self.width));
        Self { order, ..self }
    }

    /// Returns the stored rows, without the norm.
    pub fn stored(&self) -> &'a [f32] {
        self.rows
    }

    /// Returns whether a norm is applied to the rows.
    pub fn is_normalized(&self) -> bool {
        self.norm.is_some()
    }

    /// Returns the row count.
    pub fn rows(&self) -> usize {
        self.rows.len() / self.width
    }

    /// Returns the column count.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns some rows.
    pub fn part(&self, rows: Range<usize>) -> Self {
        Self {
            rows: &self.rows[rows.start * self.width..rows.end * self.width],
            ..*self
        }
    }

    /// Calls `take(i, row i)` for every row, after norm and reordering if any.
    pub fn for_rows(&self, cpu: Cpu, take: impl Fn(usize, &[f32]) + Sync) {
        let Some(order) = self.order else {
            return self.for_normal_rows(cpu, take);
        };
        self.for_normal_rows(cpu, |i, row| {
            lend(ORDERED_ROW, self.width, |ordered: &mut [f32]| {
                let columns = ordered.iter_mut().zip(order);
                columns.for_each(|(to, &at)| *to = row[at as usize]);
                take(i, ordered);
            });
        });
    }

    fn for_normal_rows(&self, cpu: Cpu, take: impl Fn(usize, &[f32]) + Sync) {
        let n_rows = self.rows();
        let threads = cpu.for_elements(self.rows.len()).threads;
        parallel::for_tasks(threads, n_rows.div_ceil(ROWS), |task| {
            lend(NORMALIZED_ROW, self.width, |normal: &mut [f32]| {
                let rows = task * ROWS..n_rows.min((task + 1) * ROWS);
                let mut rest = &self.rows[rows.start * self.width..rows.end * self.width];
                for i in rows {
                    let (row, after) = rest.split_at(self.width);
                    rest = after;
                    prefetch::all(&rest[..self.width.min(rest.len())]);
                    match self.norm {
                        None => take(i, row),
                        Some(norm) => {
                            norm.row(cpu.isa, row, normal);
                            take(i, normal);
                        }
                    }
                }
            });
        });
    }

    /// Writes every row, as [`Self::for_rows`] returns it, to contiguous rows in `y`.
    pub fn copy_to(&self, cpu: Cpu, y: &mut [f32]) {
        let y = Target::row_major(y, self.rows(), self.width);
        self.for_rows(cpu, |i, row| {
            // SAFETY: `for_rows` visits each row once.
            unsafe { y.piece(i, 0..self.width) }.copy_from_slice(row);
        });
    }
}
