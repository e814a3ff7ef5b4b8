//! Plans for tiles: their rows, the key positions visible to them, and the chunks that hold these positions.

use std::ops::Range;

use super::{KeyMask, Layout, RelativeProducts, Scoring, Shape};

/// The maximum row count in a tile on any instruction set.
pub(crate) const MAX_ROWS: usize = 16;

/// The query heads in one sequence that share a key/value head. Row `i` is query `i / group` in head `first_head + i
/// % group`. One query's heads are adjacent, so that a tile's rows see almost the same positions.
pub(crate) struct Group<'a> {
    pub(crate) shape: &'a Shape<'a>,
    pub(crate) scoring: &'a Scoring<'a>,
    pub(crate) sequence: usize,
    pub(crate) first_head: usize,
    pub(crate) key_mask: KeyMask<'a>,
    pub(crate) relative: Option<RelativeProducts<'a, f32>>,
}

impl Group<'_> {
    /// Returns the query and head for each row.
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

    /// Returns a range that contains all unmasked positions visible to a query. The key mask may hide some within
    /// it.
    fn seen(&self, query: usize) -> Range<usize> {
        self.key_mask
            .within((self.scoring.reach)(self.sequence, query))
    }

    /// Returns the smallest range that contains all positions visible to some row, extended to a panel's start.
    pub(crate) fn span(&self, rows: &Range<usize>, layout: Layout) -> Range<usize> {
        if rows.is_empty() {
            return 0..0;
        }
        let len = self.shape.group();
        let queries = rows.start / len..(rows.end - 1) / len + 1;
        join(queries.map(|query| self.seen(query)), layout)
    }
}

/// Returns the smallest range that contains all given ranges, extended to a panel's start.
fn join(ranges: impl Iterator<Item = Range<usize>>, layout: Layout) -> Range<usize> {
    let all = smallest_range(ranges);
    all.start / layout.width * layout.width..all.end
}

/// Returns the smallest range that contains all given ranges.
pub(crate) fn smallest_range(ranges: impl Iterator<Item = Range<usize>>) -> Range<usize> {
    let join = |a: Range<usize>, b: Range<usize>| a.start.min(b.start)..a.end.max(b.end);
    let all = ranges.filter(|range| !range.is_empty()).reduce(join);
    all.unwrap_or(0..0)
}

/// A query in one head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Row {
    pub(crate) head: usize,
    pub(crate) query: usize,
}

/// A tile's rows, and the positions visible to each.
pub(crate) struct TilePlan {
    rows: [Row; MAX_ROWS],
    seen: [Range<usize>; MAX_ROWS],
    n_rows: usize,
    /// All positions visible to some row, extended to a panel's start.
    pub(crate) span: Range<usize>,
    /// Positions in every row's range. The key mask may hide some.
    common: Range<usize>,
    /// Positions per chunk.
    chunk_len: usize,
}

impl TilePlan {
    /// Creates a plan for at most [`MAX_ROWS`] rows.
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

    /// Returns each row's query and head.
    pub(crate) fn rows(&self) -> &[Row] {
        &self.rows[..self.n_rows]
    }

    /// Returns, for each row, a range that contains all visible positions. The key mask may hide some within it.
    pub(crate) fn seen(&self) -> &[Range<usize>] {
        &self.seen[..self.n_rows]
    }

    /// Returns whether `positions` are in every row's range.
    pub(crate) fn all_see(&self, positions: &Range<usize>) -> bool {
        self.common.start <= positions.start && positions.end <= self.common.end
    }

    /// Divides the span at chunk boundaries.
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

/// Positions in the span that lie in one chunk. The first one starts a panel.
#[derive(Clone, Debug)]
pub(crate) struct SpanPart {
    /// The chunk's index, counted from position 0.
    pub(crate) chunk: usize,
    /// The chunk's first position.
    first: usize,
    pub(crate) positions: Range<usize>,
}

impl SpanPart {
    /// Returns the positions relative to the chunk's start.
    pub(crate) fn within_chunk(&self) -> Range<usize> {
        self.positions.start - self.first..self.positions.end - self.first
    }
}
