//! Some rows of a head in tiles: scores, softmax, values.

use std::ops::Range;

use super::{
    super::{
        arch::Vectors,
        rows::Target,
        tile::{CHUNK, Tile, Total},
    },
    Heads, Shape,
    chunk::{Chunk, Layout, Values},
    mask::{Kept, Scoring},
    softmax::SoftmaxRows,
};

/// No level's tile has more.
const MOST_ROWS: usize = 14;

/// The queries of the heads that share a key/value head. Row `i` is query `i / group` of the
/// `i % group`th of the heads, so that the rows of a tile see much the same.
pub(super) struct Rows<'a> {
    pub(super) shape: &'a Shape,
    pub(super) scoring: &'a Scoring<'a>,
    pub(super) query: Heads<'a>,
    pub(super) sequence: usize,
    pub(super) first_head: usize,
    pub(super) kept: Kept<'a>,
    pub(super) layout: Layout,
    pub(super) out: &'a Target<'a, f32>,
}

/// What a tile is about.
struct Plan {
    /// Head and query of each row.
    rows: [(usize, usize); MOST_ROWS],
    /// The positions each row sees, of those that are kept.
    seen: [Range<usize>; MOST_ROWS],
    n_rows: usize,
    /// All positions that some row sees; the first begins a panel.
    span: Range<usize>,
}

/// The parts of a tile's working memory.
struct Memory<'a> {
    /// `[chunks of dimensions, rows, CHUNK]`.
    queries: &'a mut [f32],
    /// `[panels, rows, width]`.
    scores: &'a mut [f32],
    /// `[chunks, rows, CHUNK]`.
    exponentials: &'a mut [f32],
    /// `[rows, width]`.
    totals: &'a mut [f32],
    /// `[CHUNK, width]`.
    values: &'a mut [f32],
}

impl Rows<'_> {
    fn group(&self) -> usize {
        self.shape.n_heads / self.shape.n_kv_heads
    }

    fn head_and_query(&self, row: usize) -> (usize, usize) {
        let group = self.group();
        (self.first_head + row % group, row / group)
    }

    /// The positions from the first to the last that some of the rows sees.
    pub(super) fn span(&self, rows: Range<usize>) -> Range<usize> {
        if rows.is_empty() {
            return 0..0;
        }
        let group = self.group();
        let queries = rows.start / group..(rows.end - 1) / group + 1;
        let seen = queries.map(|query| self.kept.within((self.scoring.reach)(query)));
        let join = |a: Range<usize>, b: Range<usize>| a.start.min(b.start)..a.end.max(b.end);
        let seen = seen.filter(|seen| !seen.is_empty()).reduce(join);
        let width = self.layout.width;
        seen.map_or(0..0, |seen| seen.start / width * width..seen.end)
    }

    /// Numbers of working memory for tiles of so many rows that see up to so many positions.
    pub(super) fn memory_len(&self, n_rows: usize, span: usize) -> usize {
        let Layout { width, head_dim } = self.layout;
        let depth = head_dim.div_ceil(CHUNK) * CHUNK;
        let chunks = span.div_ceil(CHUNK) + 1;
        n_rows * (depth + span.next_multiple_of(width) + chunks * CHUNK + width) + CHUNK * width
    }

    /// Computes a tile of rows; `chunk(i)` holds the positions from `i · CHUNK` on.
    pub(super) fn tile<'c, V: Vectors<f32>>(
        &self,
        v: V,
        rows: Range<usize>,
        chunk: impl Fn(usize) -> Chunk<'c>,
        memory: &mut [f32],
    ) {
        let plan = self.plan(rows);
        if plan.span.is_empty() {
            return self.write_zeros(&plan);
        }
        let mut memory = self.divide(&plan, memory);
        self.pack_queries(&plan, &mut memory);
        self.multiply_keys(v, &plan, &chunk, &mut memory);
        let mut sums = [0.0; MOST_ROWS];
        v.run(SoftmaxRows {
            scoring: self.scoring,
            kept: &self.kept,
            sequence: self.sequence,
            rows: &plan.rows[..plan.n_rows],
            seen: &plan.seen[..plan.n_rows],
            first: plan.span.start,
            scores: memory.scores,
            exponentials: memory.exponentials,
            sums: &mut sums,
        });
        for panel in 0..self.layout.value_panels() {
            self.multiply_values(v, &plan, panel, &chunk, &mut memory);
            self.write(&plan, panel, memory.totals, &sums);
        }
    }

    fn plan(&self, rows: Range<usize>) -> Plan {
        let span = self.span(rows.clone());
        let mut plan = Plan {
            rows: [(0, 0); MOST_ROWS],
            seen: [const { 0..0 }; MOST_ROWS],
            n_rows: rows.len(),
            span,
        };
        for (i, row) in rows.enumerate() {
            let (head, query) = self.head_and_query(row);
            plan.rows[i] = (head, query);
            plan.seen[i] = self.kept.within((self.scoring.reach)(query));
        }
        plan
    }

    fn divide<'m>(&self, plan: &Plan, memory: &'m mut [f32]) -> Memory<'m> {
        let Layout { width, head_dim } = self.layout;
        let n_rows = plan.n_rows;
        let chunks = (plan.span.end - 1) / CHUNK - plan.span.start / CHUNK + 1;
        let depth = head_dim.div_ceil(CHUNK) * CHUNK;
        let (queries, memory) = memory.split_at_mut(n_rows * depth);
        let (scores, memory) =
            memory.split_at_mut(n_rows * plan.span.len().next_multiple_of(width));
        let (exponentials, memory) = memory.split_at_mut(n_rows * chunks * CHUNK);
        let (totals, memory) = memory.split_at_mut(n_rows * width);
        Memory {
            queries,
            scores,
            exponentials,
            totals,
            values: &mut memory[..CHUNK * width],
        }
    }

    /// Row and columns of a head's query, and of its result.
    fn place(&self, (head, query): (usize, usize)) -> (usize, Range<usize>) {
        let Shape {
            queries, head_dim, ..
        } = *self.shape;
        let columns = head * head_dim..(head + 1) * head_dim;
        (self.sequence * queries + query, columns)
    }

    fn pack_queries(&self, plan: &Plan, memory: &mut Memory) {
        let head_dim = self.layout.head_dim;
        for (i, &row) in plan.rows[..plan.n_rows].iter().enumerate() {
            let query = &self.query.from(self.place(row).0, row.0, head_dim)[..head_dim];
            for (chunk, query) in query.chunks(CHUNK).enumerate() {
                let packed = &mut memory.queries[(chunk * plan.n_rows + i) * CHUNK..];
                for (packed, x) in packed.iter_mut().zip(query) {
                    *packed = x * self.scoring.scale;
                }
            }
        }
    }

    fn multiply_keys<'c, V: Vectors<f32>>(
        &self,
        v: V,
        plan: &Plan,
        chunk: impl Fn(usize) -> Chunk<'c>,
        memory: &mut Memory,
    ) {
        let Layout { width, head_dim } = self.layout;
        let scores = memory.scores.chunks_exact_mut(plan.n_rows * width);
        for (position, scores) in plan.span.clone().step_by(width).zip(scores) {
            let keys = chunk(position / CHUNK).keys(position % CHUNK);
            for first in (0..head_dim).step_by(CHUNK) {
                v.run(Tile {
                    rows: plan.n_rows,
                    depth: CHUNK.min(head_dim - first),
                    a: &memory.queries[first * plan.n_rows..],
                    b: &keys[first * width..],
                    totals: scores,
                    total: if first == 0 {
                        Total::New
                    } else {
                        Total::Running
                    },
                });
            }
        }
    }

    /// The products with a panel of values.
    fn multiply_values<'c, V: Vectors<f32>>(
        &self,
        v: V,
        plan: &Plan,
        panel: usize,
        chunk: impl Fn(usize) -> Chunk<'c>,
        memory: &mut Memory,
    ) {
        let n_rows = plan.n_rows;
        let chunks = plan.span.start / CHUNK..(plan.span.end - 1) / CHUNK + 1;
        let mut total = Total::New;
        for index in chunks.clone() {
            let first = index * CHUNK;
            let positions = plan.span.start.max(first) - first..CHUNK.min(plan.span.end - first);
            let chunk = chunk(index);
            let values = chunk.values(panel, &positions);
            let at = (index - chunks.start) * n_rows * CHUNK + positions.start;
            let exponentials = &memory.exponentials[at..];
            match chunk.values {
                Values::Finite => v.run(Tile {
                    rows: n_rows,
                    depth: positions.len(),
                    a: exponentials,
                    b: values,
                    totals: memory.totals,
                    total,
                }),
                Values::Spoiled => {
                    for row in 0..n_rows {
                        let width = self.layout.width;
                        self.copy_seen(
                            &plan.seen[row],
                            first + positions.start,
                            values,
                            memory.values,
                        );
                        v.run(Tile {
                            rows: 1,
                            depth: positions.len(),
                            a: &exponentials[row * CHUNK..],
                            b: memory.values,
                            totals: &mut memory.totals[row * width..(row + 1) * width],
                            total,
                        });
                    }
                }
            }
            total = Total::Running;
        }
    }

    /// Copies what one row sees of values from a position on, and zeros for the rest.
    fn copy_seen(&self, seen: &Range<usize>, first: usize, values: &[f32], copy: &mut [f32]) {
        let width = self.layout.width;
        let values = values.chunks_exact(width).enumerate();
        for ((i, values), copy) in values.zip(copy.chunks_exact_mut(width)) {
            if seen.contains(&(first + i)) && self.kept.has(first + i) {
                copy.copy_from_slice(values);
            } else {
                copy.fill(0.0);
            }
        }
    }

    fn write(&self, plan: &Plan, panel: usize, totals: &[f32], sums: &[f32]) {
        let Layout { width, head_dim } = self.layout;
        let part = panel * width..head_dim.min((panel + 1) * width);
        let rows = plan.rows[..plan.n_rows].iter().zip(sums);
        for ((&row, &sum), totals) in rows.zip(totals.chunks_exact(width)) {
            // A row that sees nothing has the sum 0.
            let divisor = if sum == 0.0 { 1.0 } else { sum };
            for (out, total) in self.out(row, part.clone()).iter_mut().zip(totals) {
                *out = total / divisor;
            }
        }
    }

    fn write_zeros(&self, plan: &Plan) {
        for &row in &plan.rows[..plan.n_rows] {
            self.out(row, 0..self.layout.head_dim).fill(0.0);
        }
    }

    /// Some dimensions of a row's result.
    // One `&self` gives out many `&mut`: they are apart, as the note says.
    #[allow(clippy::mut_from_ref)]
    fn out(&self, row: (usize, usize), part: Range<usize>) -> &mut [f32] {
        let (line, columns) = self.place(row);
        let part = columns.start + part.start..columns.start + part.end;
        // SAFETY: of all tasks only this one has this head and query, and it holds one piece at a time.
        unsafe { self.out.piece(line, part) }
    }
}
