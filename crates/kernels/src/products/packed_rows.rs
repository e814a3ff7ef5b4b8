//! A product's left operand: packed rows.
//!
//! A `PackedTarget` lets tasks write their rows and chunks concurrently. Lengths are checked. Each `unsafe` call
//! promises that no two tasks write the same rows.

use std::ops::Range;

use crate::threads::Shared;

/// How a row is packed: in chunks, and these in parts.
#[derive(Clone, Copy, Debug)]
pub struct Chunks {
    /// Columns per chunk. The left operand's columns are the product's depth.
    pub columns: usize,
    /// Words per row in a chunk.
    pub words: usize,
    /// Columns per part.
    pub part: usize,
}

/// A product's packed left operand: `[chunk][row][words]`.
#[derive(Clone, Copy)]
pub struct PackedRows<'a, W> {
    data: &'a [W],
    rows: usize,
    columns: usize,
    chunks: Chunks,
}

impl<'a, W> PackedRows<'a, W> {
    /// Returns the word count in packed rows. Rows with width 0 still have one chunk.
    pub fn words(rows: usize, columns: usize, chunks: Chunks) -> usize {
        rows * columns.div_ceil(chunks.columns).max(1) * chunks.words
    }

    /// Creates packed rows from words that were written before, for example through a [`PackedTarget`].
    pub fn new(data: &'a [W], rows: usize, columns: usize, chunks: Chunks) -> Self {
        assert_eq!(data.len(), Self::words(rows, columns, chunks));
        Self {
            data,
            rows,
            columns,
            chunks,
        }
    }

    /// Returns the row count.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the column count.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns all words, `[chunk][row][words]`.
    pub fn all(&self) -> &'a [W] {
        self.data
    }

    /// Returns how many words all rows have in one chunk.
    pub fn chunk_words(&self) -> usize {
        self.rows * self.chunks.words
    }

    /// Returns a chunk's words from `first_row` on, followed by the next chunks.
    #[inline(always)]
    pub fn chunk(&self, chunk: usize, first_row: usize) -> &'a [W] {
        &self.data[(chunk * self.rows + first_row) * self.chunks.words..]
    }
}

/// A packed left operand that several threads write concurrently, each its own rows and chunks.
pub struct PackedTarget<'a, W> {
    data: Shared<'a, W>,
    rows: usize,
    columns: usize,
    chunks: Chunks,
}

impl<'a, W> PackedTarget<'a, W> {
    /// Creates a target over a [`PackedRows`]' words.
    pub fn new(data: &'a mut [W], rows: usize, columns: usize, chunks: Chunks) -> Self {
        assert_eq!(data.len(), PackedRows::<W>::words(rows, columns, chunks));
        Self {
            data: Shared::new(data),
            rows,
            columns,
            chunks,
        }
    }

    /// Returns the row count.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the column count.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Returns the column count per part.
    pub fn part(&self) -> usize {
        self.chunks.part
    }

    /// Returns some rows' words in one chunk.
    ///
    /// # Safety
    /// No other borrow of these rows in this chunk is in use.
    #[allow(clippy::mut_from_ref)] // as `Shared::range`
    pub unsafe fn chunk(&self, chunk: usize, rows: Range<usize>) -> &mut [W] {
        assert!(rows.start <= rows.end && rows.end <= self.rows);
        let word = |row: usize| (chunk * self.rows + row) * self.chunks.words;
        // SAFETY: the caller's promise; different rows or chunks share no words.
        unsafe { self.data.range(word(rows.start)..word(rows.end)) }
    }
}
