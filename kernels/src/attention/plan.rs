//! Which rows a tile has, which positions these see, and which chunks those lie in.

use std::ops::Range;

use super::{Kept, Layout, Scoring, Shape};

/// The most rows of a tile at any level.
pub(crate) const MAX_ROWS: usize = 16;

/// The query heads of one sequence that share a key/value head. Row `i` is query `i / group` of head
/// `first_head + i % group`: the heads of one query are neighbours, so that the rows of a tile see almost the
/// same positions.
pub(crate) struct Group<'a> {
    pub(crate) shape: &'a Shape<'a>,
    pub(crate) scoring: &'a Scoring<'a>,
    pub(crate) sequence: usize,
    pub(crate) first_head: usize,
    pub(crate) kept: Kept<'a>,
}

impl Group<'_> {
    /// The query and head of each of these rows.
    fn rows(&self, rows: Range<usize>) -> impl Iterator<Item = Row> {
        let len = self.shape.group();
        let (mut head, mut query) = (rows.start % len, rows.start / len);
        rows.map(move |_| {
            let row = Row {
                head: self.first_head + head,
                query,
            };
            head += 1;
            if head == len {
                (head, query) = (0, query + 1);
            }
            row
        })
    }

    /// A range that contains all kept positions that a query sees; marks may drop some within it.
    fn seen(&self, query: usize) -> Range<usize> {
        self.kept.within((self.scoring.reach)(query))
    }

    /// The smallest range that contains all positions that some of the rows see, extended to the start of a
    /// panel.
    pub(crate) fn span(&self, rows: &Range<usize>, layout: Layout) -> Range<usize> {
        if rows.is_empty() {
            return 0..0;
        }
        let len = self.shape.group();
        let queries = rows.start / len..(rows.end - 1) / len + 1;
        join(queries.map(|query| self.seen(query)), layout)
    }
}

/// The smallest range that contains all of these ranges, extended to the start of a panel.
fn join(ranges: impl Iterator<Item = Range<usize>>, layout: Layout) -> Range<usize> {
    let join = |a: Range<usize>, b: Range<usize>| a.start.min(b.start)..a.end.max(b.end);
    let all = ranges.filter(|range| !range.is_empty()).reduce(join);
    all.map_or(0..0, |all| all.start / layout.width * layout.width..all.end)
}

/// One query of one head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    pub(crate) head: usize,
    pub(crate) query: usize,
}

/// The rows of a tile, and what they see.
pub(crate) struct Plan {
    rows: [Row; MAX_ROWS],
    seen: [Range<usize>; MAX_ROWS],
    n_rows: usize,
    /// All positions that some row sees, from the start of a panel on.
    pub(crate) span: Range<usize>,
    /// Positions in the ranges of all rows; marks may drop some.
    common: Range<usize>,
    /// Positions of a chunk.
    chunk_len: usize,
}

impl Plan {
    /// For at most [`MAX_ROWS`] rows.
    pub(crate) fn new(group: &Group, rows: Range<usize>, layout: Layout) -> Self {
        let mut plan = Self {
            rows: [Row::default(); MAX_ROWS],
            seen: [const { 0..0 }; MAX_ROWS],
            n_rows: rows.len(),
            span: 0..0,
            common: 0..usize::MAX,
            chunk_len: layout.positions,
        };
        for (i, row) in group.rows(rows).enumerate() {
            let seen = group.seen(row.query);
            plan.common.start = plan.common.start.max(seen.start);
            plan.common.end = plan.common.end.min(seen.end);
            plan.rows[i] = row;
            plan.seen[i] = seen;
        }
        plan.span = join(plan.seen().iter().cloned(), layout);
        plan
    }

    /// The query and head of each row.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows[..self.n_rows]
    }

    /// For each row, a range that contains all positions that it sees; marks may drop some within it.
    pub(crate) fn seen(&self) -> &[Range<usize>] {
        &self.seen[..self.n_rows]
    }

    /// Whether these positions are in the ranges of all rows.
    pub(crate) fn all_see(&self, positions: &Range<usize>) -> bool {
        self.common.start <= positions.start && positions.end <= self.common.end
    }

    /// The span, divided at the boundaries of chunks.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = SpanPart> + '_ {
        let len = self.chunk_len;
        let chunks = self.span.start / len..self.span.end.div_ceil(len);
        chunks.map(move |chunk| SpanPart {
            chunk,
            first: chunk * len,
            positions: self.span.start.max(chunk * len)..self.span.end.min((chunk + 1) * len),
        })
    }
}

/// The positions of the span that lie in one chunk; the first of them begins a panel.
#[derive(Clone, Debug)]
pub(crate) struct SpanPart {
    /// The chunk's number, counted from position 0.
    pub(crate) chunk: usize,
    /// The first position of the chunk.
    first: usize,
    pub(crate) positions: Range<usize>,
}

impl SpanPart {
    /// The positions, counted from the start of the chunk.
    pub(crate) fn within_chunk(&self) -> Range<usize> {
        self.positions.start - self.first..self.positions.end - self.first
    }
}
