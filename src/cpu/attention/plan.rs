//! Which rows a tile has, and which positions they see.

use std::ops::Range;

use super::{
    Shape,
    chunk::Layout,
    mask::{Kept, Scoring},
};

/// No level's tile has more rows.
pub(super) const MOST_ROWS: usize = 14;

/// The queries of the heads that share a key/value head. Row `i` is query `i / group` of the
/// `i % group`th of the heads, so that the rows of a tile see much the same.
pub(super) struct Group<'a> {
    pub(super) shape: &'a Shape<'a>,
    pub(super) scoring: &'a Scoring<'a>,
    pub(super) sequence: usize,
    pub(super) first_head: usize,
    pub(super) kept: Kept<'a>,
}

impl Group<'_> {
    /// Of rows: what is asked, and of which head.
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

    /// The kept positions that a query sees, or at least those that it does are among.
    fn seen(&self, query: usize) -> Range<usize> {
        self.kept.within((self.scoring.reach)(query))
    }

    /// All positions that some of the rows see, from the start of a panel on.
    pub(super) fn span(&self, rows: &Range<usize>, layout: Layout) -> Range<usize> {
        if rows.is_empty() {
            return 0..0;
        }
        let len = self.shape.group();
        let queries = rows.start / len..(rows.end - 1) / len + 1;
        join(queries.map(|query| self.seen(query)), layout)
    }
}

/// From the first position to the last of ranges, from the start of a panel on.
fn join(ranges: impl Iterator<Item = Range<usize>>, layout: Layout) -> Range<usize> {
    let join = |a: Range<usize>, b: Range<usize>| a.start.min(b.start)..a.end.max(b.end);
    let all = ranges.filter(|range| !range.is_empty()).reduce(join);
    all.map_or(0..0, |all| all.start / layout.width * layout.width..all.end)
}

/// One query of one head.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Row {
    pub(super) head: usize,
    pub(super) query: usize,
}

/// A tile.
pub(super) struct Plan {
    rows: [Row; MOST_ROWS],
    seen: [Range<usize>; MOST_ROWS],
    n_rows: usize,
    /// All positions that some row sees; the first begins a panel.
    pub(super) span: Range<usize>,
    /// Positions that every row sees, if they are kept.
    common: Range<usize>,
    /// Positions of a chunk.
    chunk_len: usize,
}

impl Plan {
    /// Of rows that are at most [`MOST_ROWS`].
    pub(super) fn new(group: &Group, rows: Range<usize>, layout: Layout) -> Self {
        let mut plan = Self {
            rows: [Row::default(); MOST_ROWS],
            seen: [const { 0..0 }; MOST_ROWS],
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

    /// The rows.
    pub(super) fn rows(&self) -> &[Row] {
        &self.rows[..self.n_rows]
    }

    /// The kept positions that each row sees, or among which they are.
    pub(super) fn seen(&self) -> &[Range<usize>] {
        &self.seen[..self.n_rows]
    }

    /// Whether every row sees all of these positions, if they are kept.
    pub(super) fn all_see(&self, positions: &Range<usize>) -> bool {
        self.common.start <= positions.start && positions.end <= self.common.end
    }

    /// The span, cut where chunks begin.
    pub(super) fn pieces(&self) -> impl Iterator<Item = Piece> + '_ {
        let len = self.chunk_len;
        let chunks = self.span.start / len..self.span.end.div_ceil(len);
        chunks.map(move |chunk| Piece {
            chunk,
            first: chunk * len,
            positions: self.span.start.max(chunk * len)..self.span.end.min((chunk + 1) * len),
        })
    }
}

/// Positions of a chunk; the first begins a panel.
#[derive(Clone, Debug)]
pub(super) struct Piece {
    /// The chunk's number.
    pub(super) chunk: usize,
    /// The chunk's first position.
    first: usize,
    pub(super) positions: Range<usize>,
}

impl Piece {
    /// The positions, counted from the chunk's first.
    pub(super) fn within_chunk(&self) -> Range<usize> {
        self.positions.start - self.first..self.positions.end - self.first
    }
}
