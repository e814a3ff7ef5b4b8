//! A tile of queries: scores, softmax, values.

use std::ops::Range;

use super::{
    super::{
        arch::{MOST_LANES, Task, Vectors},
        dot_tile::{Ahead, DotTile},
        format::{DotTask, Dots},
        rows::Target,
        tile::{CHUNK, Total, WIDTH},
    },
    Heads,
    chunk::{Chunk, Layout, Values},
    plan::{Group, Piece, Plan, Row},
    softmax::{Exponentiate, Score, fold},
};

/// The rows of a key/value head, where they come from and go to.
pub(super) struct Rows<'a> {
    pub(super) group: Group<'a>,
    /// The sequence's first, of the queries' rows.
    pub(super) first_line: usize,
    pub(super) query: Heads<'a>,
    pub(super) layout: Layout,
    pub(super) out: &'a Target<'a, f32>,
}

/// The parts of a tile's working memory.
struct Memory<'a> {
    /// `[chunks of dimensions, rows, CHUNK]`.
    queries: &'a mut [f32],
    /// `[panels of positions, rows, width]`.
    scores: &'a mut [f32],
    /// `[rows, CHUNK]`, of one chunk of positions; and a chunk more, since they may begin within theirs.
    exponentials: &'a mut [f32],
    /// `[panels of dimensions, rows, width]`.
    totals: &'a mut [f32],
    /// The largest scores of each row, `[rows, width]`.
    largest: &'a mut [f32],
    /// The sums of the exponentials, `[rows, width]`.
    sums: &'a mut [f32],
    /// `[CHUNK, width]`.
    values: &'a mut [f32],
}

impl<'a> Rows<'a> {
    /// The lengths of the parts of [`Memory`], for a tile of so many rows that see so many positions.
    fn lengths(&self, n_rows: usize, span: usize) -> [usize; 7] {
        let Layout { width, head_dim } = self.layout;
        let of_row = [
            head_dim.next_multiple_of(CHUNK),
            span.next_multiple_of(width),
            CHUNK,
            self.layout.value_panels() * width,
            width,
            width,
        ];
        let [queries, scores, exponentials, totals, largest, sums] = of_row.map(|len| n_rows * len);
        let (exponentials, values) = (exponentials + CHUNK, CHUNK * width);
        [queries, scores, exponentials, totals, largest, sums, values]
    }

    /// Numbers of working memory for tiles of up to so many rows that see up to so many positions.
    pub(super) fn memory_len(&self, n_rows: usize, span: usize) -> usize {
        self.lengths(n_rows, span).iter().sum()
    }

    fn divide<'m>(&self, plan: &Plan, memory: &'m mut [f32]) -> Memory<'m> {
        let mut rest = memory;
        let [queries, scores, exponentials, totals, largest, sums, values] = self
            .lengths(plan.rows().len(), plan.span.len())
            .map(|length| {
                rest.split_off_mut(..length)
                    .expect("memory_len has seen to it")
            });
        Memory {
            queries,
            scores,
            exponentials,
            totals,
            largest,
            sums,
            values,
        }
    }

    /// Computes a tile of rows; `chunk(i)` holds the positions from `i · CHUNK` on.
    pub(super) fn tile<'c, V: Vectors<f32>>(
        &self,
        v: V,
        rows: Range<usize>,
        chunk: impl Fn(usize) -> Chunk<'c>,
        memory: &mut [f32],
    ) {
        let plan = Plan::new(&self.group, rows, self.layout);
        if plan.span.is_empty() {
            for &row in plan.rows() {
                self.out(row).fill(0.0);
            }
            return;
        }
        let mut memory = self.divide(&plan, memory);
        v.run(PackQueries {
            of: self,
            plan: &plan,
            packed: memory.queries,
        });
        let mut total = Total::New;
        for piece in plan.pieces() {
            self.multiply_keys(v, &plan, &piece, &chunk(piece.chunk), &mut memory);
            v.run(Score {
                group: &self.group,
                plan: &plan,
                first: piece.positions.start,
                scores: &mut memory.scores[self.scores_of(&plan, &piece)],
                largest: memory.largest,
                total,
            });
            total = Total::Running;
        }
        total = Total::New;
        for piece in plan.pieces() {
            let start = piece.within_chunk().start;
            v.run(Exponentiate {
                scores: &memory.scores[self.scores_of(&plan, &piece)],
                largest: memory.largest,
                exponentials: &mut memory.exponentials[start..],
                sums: memory.sums,
                total,
            });
            self.multiply_values(v, &plan, &piece, &chunk(piece.chunk), &mut memory, total);
            total = Total::Running;
        }
        v.run(Finish {
            of: self,
            plan: &plan,
            totals: memory.totals,
            sums: memory.sums,
        });
    }

    /// Where the scores of a piece are.
    fn scores_of(&self, plan: &Plan, piece: &Piece) -> Range<usize> {
        let width = self.layout.width;
        let start = piece.positions.start - plan.span.start;
        let end = start + piece.positions.len().next_multiple_of(width);
        start * plan.rows().len()..end * plan.rows().len()
    }

    fn multiply_keys<V: Vectors<f32>>(
        &self,
        v: V,
        plan: &Plan,
        piece: &Piece,
        chunk: &Chunk,
        memory: &mut Memory,
    ) {
        let Layout { width, head_dim } = self.layout;
        let n_rows = plan.rows().len();
        let scores = &mut memory.scores[self.scores_of(plan, piece)];
        let panels = piece.within_chunk().step_by(width);
        for (position, scores) in panels.zip(scores.chunks_exact_mut(n_rows * width)) {
            let keys = chunk.keys(position);
            for first in (0..head_dim).step_by(CHUNK) {
                Dots::run(
                    v,
                    NearTile {
                        rows: n_rows,
                        depth: CHUNK.min(head_dim - first),
                        a: &memory.queries[first * n_rows..],
                        b: &keys[first * width..],
                        totals: scores,
                        total: if first == 0 {
                            Total::New
                        } else {
                            Total::Running
                        },
                    },
                );
            }
        }
    }

    fn multiply_values<V: Vectors<f32>>(
        &self,
        v: V,
        plan: &Plan,
        piece: &Piece,
        chunk: &Chunk,
        memory: &mut Memory,
        total: Total,
    ) {
        let width = self.layout.width;
        let n_rows = plan.rows().len();
        let positions = piece.within_chunk();
        let exponentials = &memory.exponentials[positions.start..];
        let totals = memory.totals.chunks_exact_mut(n_rows * width);
        for (panel, totals) in totals.enumerate() {
            let values = chunk.values(panel, &positions);
            let tile = NearTile {
                rows: n_rows,
                depth: positions.len(),
                a: exponentials,
                b: values,
                totals,
                total,
            };
            match chunk.values {
                Values::Finite => Dots::run(v, tile),
                Values::Spoiled => {
                    for row in 0..n_rows {
                        self.copy_seen(&plan.seen()[row], piece, values, memory.values);
                        Dots::run(
                            v,
                            NearTile {
                                rows: 1,
                                a: &exponentials[row * CHUNK..],
                                b: memory.values,
                                totals: &mut tile.totals[row * width..(row + 1) * width],
                                ..tile
                            },
                        );
                    }
                }
            }
        }
    }

    /// Copies the values of a piece that one row sees, and zeros for the others.
    fn copy_seen(&self, seen: &Range<usize>, piece: &Piece, values: &[f32], copy: &mut [f32]) {
        let width = self.layout.width;
        let rows = values.chunks_exact(width).zip(copy.chunks_exact_mut(width));
        for (position, (values, copy)) in piece.positions.clone().zip(rows) {
            if seen.contains(&position) && self.group.kept.has(position) {
                copy.copy_from_slice(values);
            } else {
                copy.fill(0.0);
            }
        }
    }

    /// Line and columns of a row's query, and of its result.
    #[inline(always)]
    fn place(&self, row: Row) -> (usize, Range<usize>) {
        let head_dim = self.layout.head_dim;
        let columns = row.head * head_dim..(row.head + 1) * head_dim;
        (self.first_line + row.query, columns)
    }

    #[inline(always)]
    fn query(&self, row: Row) -> &'a [f32] {
        let (line, columns) = self.place(row);
        &self.query.from(line, 0, 0)[columns]
    }

    // One `&self` gives out many `&mut`: they are apart, as the note says.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    fn out(&self, row: Row) -> &mut [f32] {
        let (line, columns) = self.place(row);
        // SAFETY: of all tasks only this one has this head and query, and it holds one piece at a time.
        unsafe { self.out.piece(line, columns) }
    }
}

/// A [`DotTile`] of keys or values, which are near. That nothing is fetched ahead is known when this is compiled: the choice
/// would else be made in the innermost loop, and takes a hundredth of the time at the AVX2 level.
struct NearTile<'a> {
    rows: usize,
    depth: usize,
    a: &'a [f32],
    b: &'a [f32],
    totals: &'a mut [f32],
    total: Total,
}

impl DotTask<f32> for NearTile<'_> {
    #[inline(always)]
    fn run<D: Dots<f32>>(self, dots: D) {
        let tile = DotTile::<f32> {
            rows: self.rows,
            depth: self.depth,
            a: self.a,
            b: self.b,
            ahead: Ahead::Nothing,
            totals: self.totals,
            total: self.total,
        };
        tile.run(dots);
    }
}

/// Copies a tile's queries, scaled, as the micro-kernel reads them.
struct PackQueries<'a> {
    of: &'a Rows<'a>,
    plan: &'a Plan,
    packed: &'a mut [f32],
}

impl Task<f32> for PackQueries<'_> {
    #[inline(always)]
    fn run<V: Vectors<f32>>(self, _: V) {
        let n_rows = self.plan.rows().len();
        let scale = self.of.group.scoring.scale;
        for (i, &row) in self.plan.rows().iter().enumerate() {
            for (chunk, query) in self.of.query(row).chunks(CHUNK).enumerate() {
                let packed = &mut self.packed[(chunk * n_rows + i) * CHUNK..][..query.len()];
                for (packed, x) in packed.iter_mut().zip(query) {
                    *packed = x * scale;
                }
            }
        }
    }
}

/// Divides the totals by the sums of the exponentials, and writes the results.
struct Finish<'a> {
    of: &'a Rows<'a>,
    plan: &'a Plan,
    totals: &'a [f32],
    sums: &'a [f32],
}

impl Task<f32> for Finish<'_> {
    #[inline(always)]
    fn run<V: Vectors<f32>>(self, v: V) {
        let width = WIDTH * V::LANES;
        let n_rows = self.plan.rows().len();
        for (i, &row) in self.plan.rows().iter().enumerate() {
            let sum = fold(v, &self.sums[i * width..(i + 1) * width], |a, b| a + b);
            // A row that sees nothing has the sum 0, and totals of 0.
            let factor = v.splat(if sum == 0.0 { 0.0 } else { 1.0 / sum });
            let out = self.of.out(row).chunks_mut(V::LANES).enumerate();
            for (j, out) in out {
                let (panel, j) = (j / WIDTH, j % WIDTH);
                let totals =
                    &self.totals[(panel * n_rows + i) * width..][j * V::LANES..][..V::LANES];
                // SAFETY: `totals` holds LANES numbers.
                let totals = unsafe { v.load(totals.as_ptr()) };
                let result = v.multiply_add(totals, factor, v.splat(0.0));
                if out.len() == V::LANES {
                    // SAFETY: and so does `out`.
                    unsafe { v.store(result, out.as_mut_ptr()) };
                } else {
                    let mut lanes = [0.0; MOST_LANES];
                    // SAFETY: no vector has more than MOST_LANES.
                    unsafe { v.store(result, lanes.as_mut_ptr()) };
                    out.copy_from_slice(&lanes[..out.len()]);
                }
            }
        }
    }
}
