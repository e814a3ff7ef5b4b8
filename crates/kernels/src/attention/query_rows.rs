//! A key/value head's queries, and the destination for their results.

use std::ops::Range;

use super::{Group, Heads, Layout, plan::Row};
use crate::threads::Target;

/// A key/value head's rows: their source and destination.
pub(crate) struct QueryRows<'a> {
    pub(crate) group: Group<'a>,
    /// The row that holds the sequence's first query, in `query` and in `out`.
    pub(crate) first_line: usize,
    pub(crate) query: Heads<'a>,
    pub(crate) layout: Layout,
    pub(crate) out: &'a Target<'a, f32>,
    pub(crate) normalizers: Option<&'a Target<'a, f32>>,
}

impl<'a> QueryRows<'a> {
    /// Returns a query's row and columns, which are also its result's.
    #[inline(always)]
    fn place(&self, row: Row) -> (usize, Range<usize>) {
        let head_dim = self.layout.head_dim;
        let columns = row.head * head_dim..(row.head + 1) * head_dim;
        (self.first_line + row.query, columns)
    }

    #[inline(always)]
    pub(crate) fn query(&self, row: Row) -> &'a [f32] {
        let (line, columns) = self.place(row);
        &self.query.from(line, 0, 0)[columns]
    }

    // One `&self` returns many `&mut`. The SAFETY comment states why they are disjoint.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) fn out(&self, row: Row) -> &mut [f32] {
        let (line, columns) = self.place(row);
        // SAFETY: only this task has this head and query, and it holds one slice at a time.
        unsafe { self.out.piece(line, columns) }
    }

    /// Writes a row's largest score and the sum of its exponentials, if they are requested.
    #[inline(always)]
    pub(crate) fn write_normalizer(&self, row: Row, normalizer: [f32; 2]) {
        if let Some(to) = self.normalizers {
            let columns = 2 * row.head..2 * row.head + 2;
            // SAFETY: only this task has this head and query.
            unsafe { to.piece(self.first_line + row.query, columns) }.copy_from_slice(&normalizer);
        }
    }
}
