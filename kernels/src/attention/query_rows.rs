//! The queries of one key/value head, and where their results go.

use std::ops::Range;

use super::{Group, Heads, Layout, plan::Row};
use crate::threads::Target;

/// The rows of one key/value head: where they come from and go to.
pub(crate) struct QueryRows<'a> {
    pub(crate) group: Group<'a>,
    /// The line of the sequence's first query, in `query` and in `out`.
    pub(crate) first_line: usize,
    pub(crate) query: Heads<'a>,
    pub(crate) layout: Layout,
    pub(crate) out: &'a Target<'a, f32>,
}

impl<'a> QueryRows<'a> {
    /// Line and columns of a row's query, which are also those of its result.
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

    // One `&self` gives out many `&mut`: that they are disjoint is what the SAFETY note says.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    pub(crate) fn out(&self, row: Row) -> &mut [f32] {
        let (line, columns) = self.place(row);
        // SAFETY: only this task has this head and query, and it holds one piece at a time.
        unsafe { self.out.piece(line, columns) }
    }
}
