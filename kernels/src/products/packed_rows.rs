//! The rows of a product's left operand and of its result: packed for the micro-kernel, or row-major.
//!
//! The `Target`s let tasks write their parts of one result at the same time: the lengths are checked, and that
//! no two parts overlap is what each `unsafe` call promises.

use std::ops::Range;

use crate::threads::Shared;

/// How a row is packed: in chunks, and these in parts.
#[derive(Clone, Copy, Debug)]
pub struct Chunks {
    /// Columns in a chunk, which are terms of the product.
    pub columns: usize,
    /// Words that one row occupies in a chunk.
    pub words: usize,
    /// Columns of a part, which is packed by itself.
    pub part: usize,
}

/// The packed left operand of a product: `[chunk][row][words]`.
#[derive(Clone, Copy)]
pub struct PackedRows<'a, W> {
    data: &'a [W],
    rows: usize,
    columns: usize,
    chunks: Chunks,
}

impl<'a, W> PackedRows<'a, W> {
    /// Words that packed rows occupy. Rows of width 0 still have one chunk, of no terms.
    pub fn words(rows: usize, columns: usize, chunks: Chunks) -> usize {
        rows * columns.div_ceil(chunks.columns).max(1) * chunks.words
    }

    /// Of words that were packed before, as through a [`PackedTarget`].
    pub fn new(data: &'a [W], rows: usize, columns: usize, chunks: Chunks) -> Self {
        assert_eq!(data.len(), Self::words(rows, columns, chunks));
        Self {
            data,
            rows,
            columns,
            chunks,
        }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// All words, `[chunk][row][words]`.
    pub fn all(&self) -> &'a [W] {
        self.data
    }

    /// Words of all rows in one chunk.
    pub fn chunk_words(&self) -> usize {
        self.rows * self.chunks.words
    }

    /// The words of a chunk from a row on, with the following chunks behind them.
    #[inline(always)]
    pub fn chunk(&self, chunk: usize, first_row: usize) -> &'a [W] {
        &self.data[(chunk * self.rows + first_row) * self.chunks.words..]
    }
}

/// A packed left operand that several threads write at the same time, each its own rows and chunks.
pub struct PackedTarget<'a, W> {
    data: Shared<'a, W>,
    rows: usize,
    columns: usize,
    chunks: Chunks,
}

impl<'a, W> PackedTarget<'a, W> {
    /// Over words that become a [`PackedRows`].
    pub fn new(data: &'a mut [W], rows: usize, columns: usize, chunks: Chunks) -> Self {
        assert_eq!(data.len(), PackedRows::<W>::words(rows, columns, chunks));
        Self {
            data: Shared::new(data),
            rows,
            columns,
            chunks,
        }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Columns that are packed by themselves.
    pub fn part(&self) -> usize {
        self.chunks.part
    }

    /// The words of some rows in one chunk.
    ///
    /// # Safety
    /// No other borrow of these rows in this chunk is in use.
    #[allow(clippy::mut_from_ref)] // as `Shared::range`
    pub unsafe fn chunk(&self, chunk: usize, rows: Range<usize>) -> &mut [W] {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        let word = |row: usize| (chunk * self.rows + row) * self.chunks.words;
        // SAFETY: the caller's promise; different rows or chunks have no words in common.
        unsafe { self.data.range(word(rows.start)..word(rows.end)) }
    }
}
