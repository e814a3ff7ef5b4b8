//! One tile of queries from packing to results: scores, softmax, product with the values.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};

use super::{
    chunk::{Chunk, Layout, Values},
    fill::MAX_WIDTH,
    heads::Heads,
    kernel::Kernel,
    operand::{Operand, OperandDots},
    plan::{Group, Piece, Plan, Row},
    softmax::{Exponentiate, Score, fold},
    tile_memory::TileMemory,
};
use crate::{
    products::{
        dot_tile::{Ahead, DotTile},
        format::{Dots, Format},
        tile::{Total, WIDTH},
    },
    threads::target::Target,
    vectors::level::{MAX_LANES, Task, Vectors},
};

/// The rows of one key/value head: where they come from and go to.
pub(crate) struct Rows<'a> {
    pub(crate) group: Group<'a>,
    /// The line of the sequence's first query, in `query` and in `out`.
    pub(crate) first_line: usize,
    pub(crate) query: Heads<'a>,
    pub(crate) layout: Layout,
    pub(crate) out: &'a Target<'a, f32>,
}

impl<'a> Rows<'a> {
    /// Computes a tile of rows; `chunk(i)` returns chunk number `i` of keys and values.
    pub(crate) fn tile<'c, F: Operand>(
        &self,
        kernel: &dyn Kernel<F>,
        rows: Range<usize>,
        chunk: &dyn Fn(usize) -> Chunk<'c, F>,
        memory: &mut [f32],
    ) {
        let plan = Plan::new(&self.group, rows, self.layout);
        if plan.span.is_empty() {
            for &row in plan.rows() {
                self.out(row).fill(0.0);
            }
            return;
        }
        let (n_rows, span) = (plan.rows().len(), plan.span.len());
        let mut memory = TileMemory::new(kernel, self.layout, n_rows, span, memory);
        kernel.pack_queries(PackQueries {
            of: self,
            plan: &plan,
            packed: memory.queries,
        });
        let mut total = Total::New;
        for piece in plan.pieces() {
            self.multiply_keys(kernel, &plan, &piece, &chunk(piece.chunk), &mut memory);
            kernel.score(Score {
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
            let start = piece.within_chunk().start / self.layout.width * kernel.left_words();
            kernel.exponentiate(Exponentiate {
                scores: &memory.scores[self.scores_of(&plan, &piece)],
                largest: memory.largest,
                exponentials: &mut memory.exponentials[start..],
                sums: memory.sums,
                total,
            });
            self.multiply_values(
                kernel,
                &plan,
                &piece,
                &chunk(piece.chunk),
                &mut memory,
                total,
            );
            total = Total::Running;
        }
        kernel.finish(Finish {
            of: self,
            plan: &plan,
            totals: memory.totals,
            sums: memory.sums,
        });
    }

    /// Where a piece's scores lie in the tile's memory.
    fn scores_of(&self, plan: &Plan, piece: &Piece) -> Range<usize> {
        let width = self.layout.width;
        let start = piece.positions.start - plan.span.start;
        let end = start + piece.positions.len().next_multiple_of(width);
        start * plan.rows().len()..end * plan.rows().len()
    }

    fn multiply_keys<F: Operand>(
        &self,
        kernel: &dyn Kernel<F>,
        plan: &Plan,
        piece: &Piece,
        chunk: &Chunk<F>,
        memory: &mut TileMemory<F>,
    ) {
        let Layout {
            width, head_dim, ..
        } = self.layout;
        let n_rows = plan.rows().len();
        let scores = &mut memory.scores[self.scores_of(plan, piece)];
        let panels = piece.within_chunk().step_by(width);
        for (position, scores) in panels.zip(scores.chunks_exact_mut(n_rows * width)) {
            let keys = chunk.keys(position);
            for (part, first) in (0..head_dim).step_by(F::CHUNK).enumerate() {
                kernel.multiply(NearTile {
                    rows: n_rows,
                    depth: F::CHUNK.min(head_dim - first),
                    a: &memory.queries[part * n_rows * kernel.row_words()..],
                    b: &keys[first / F::GROUP * width..],
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

    fn multiply_values<F: Operand>(
        &self,
        kernel: &dyn Kernel<F>,
        plan: &Plan,
        piece: &Piece,
        chunk: &Chunk<F>,
        memory: &mut TileMemory<F>,
        total: Total,
    ) {
        let width = self.layout.width;
        let n_rows = plan.rows().len();
        let positions = piece.within_chunk();
        let exponentials = &memory.exponentials[positions.start / width * kernel.left_words()..];
        let totals = memory.totals.chunks_exact_mut(n_rows * width);
        for (panel, totals) in totals.enumerate() {
            let values = chunk.values(panel, &positions);
            let tile = NearTile::<F> {
                rows: n_rows,
                depth: positions.len(),
                a: exponentials,
                b: values,
                totals,
                total,
            };
            match chunk.values {
                Values::Finite => kernel.multiply(tile),
                Values::NonFinite => {
                    for row in 0..n_rows {
                        self.copy_seen::<F>(&plan.seen()[row], piece, values, memory.values);
                        kernel.multiply(NearTile {
                            rows: 1,
                            a: &exponentials[row * kernel.row_words()..],
                            b: memory.values,
                            totals: &mut tile.totals[row * width..(row + 1) * width],
                            ..tile
                        });
                    }
                }
            }
        }
    }

    /// Copies a piece's values with zeros for the positions that a row does not see, so that their NaN do not
    /// reach it.
    fn copy_seen<F: Operand>(
        &self,
        seen: &Range<usize>,
        piece: &Piece,
        values: &[F::Word],
        copy: &mut [F::Word],
    ) {
        let width = self.layout.width;
        let bits = u32::BITS / F::GROUP as u32;
        let sees = |position: usize| {
            piece.positions.contains(&position)
                && seen.contains(&position)
                && self.group.kept.has(position)
        };
        let values = cast_slice::<_, u32>(values).chunks_exact(width);
        let copy = cast_slice_mut::<_, u32>(copy).chunks_exact_mut(width);
        for (word, (values, copy)) in values.zip(copy).enumerate() {
            let first = piece.positions.start + word * F::GROUP;
            let terms = (0..F::GROUP as u32).filter(|&term| sees(first + term as usize));
            let mask = terms.fold(0, |mask, term| {
                mask | u32::MAX >> (u32::BITS - bits) << (term * bits)
            });
            for (copy, value) in copy.iter_mut().zip(values) {
                *copy = value & mask;
            }
        }
    }

    /// Line and columns of a row's query, which are also those of its result.
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

    // One `&self` gives out many `&mut`: that they are disjoint is what the SAFETY note says.
    #[allow(clippy::mut_from_ref)]
    #[inline(always)]
    fn out(&self, row: Row) -> &mut [f32] {
        let (line, columns) = self.place(row);
        // SAFETY: only this task has this head and query, and it holds one piece at a time.
        unsafe { self.out.piece(line, columns) }
    }
}

/// A [`DotTile`] of keys or values, which are in the cache already. That nothing is prefetched is known at
/// compile time here; otherwise the innermost loop would decide it, at a cost of 1 % at the AVX2 level.
pub(crate) struct NearTile<'a, F: Format> {
    rows: usize,
    depth: usize,
    a: &'a [F::Word],
    b: &'a [F::Word],
    totals: &'a mut [f32],
    total: Total,
}

impl<F: Operand, D: Dots<F>> Task<D> for NearTile<'_, F> {
    type Output = ();

    #[inline(always)]
    fn compute(self, dots: D) {
        let tile = DotTile::<F> {
            rows: self.rows,
            depth: self.depth,
            a: self.a,
            b: self.b,
            ahead: Ahead::Nothing,
            totals: self.totals,
            total: self.total,
        };
        tile.compute(dots);
    }
}

/// Packs a tile's queries, multiplied by the scale, as left operand.
pub(crate) struct PackQueries<'a, F: Operand> {
    of: &'a Rows<'a>,
    plan: &'a Plan,
    packed: &'a mut [F::Word],
}

impl<F: Operand, D: OperandDots<F>> Task<D> for PackQueries<'_, F> {
    type Output = ();

    #[inline(always)]
    fn compute(self, d: D) {
        let v = d.vectors();
        let n_rows = self.plan.rows().len();
        let scale = v.splat(self.of.group.scoring.scale);
        let mut padded = [0.0; MAX_WIDTH];
        for (i, &row) in self.plan.rows().iter().enumerate() {
            for (chunk, query) in self.of.query(row).chunks(F::CHUNK).enumerate() {
                let packed =
                    &mut self.packed[(chunk * n_rows + i) * D::ROW_WORDS..][..D::ROW_WORDS];
                let packed = packed.chunks_exact_mut(D::LEFT_WORDS);
                for (query, packed) in query.chunks(D::PANEL).zip(packed) {
                    let query = if query.len() == D::PANEL {
                        query
                    } else {
                        padded[..query.len()].copy_from_slice(query);
                        &padded
                    };
                    let mut terms = [scale; WIDTH];
                    for (j, terms) in terms.iter_mut().enumerate() {
                        // SAFETY: `query` holds WIDTH vectors.
                        let query = unsafe { v.load(query.as_ptr().add(j * (D::PANEL / WIDTH))) };
                        *terms = v.multiply(query, scale);
                    }
                    // SAFETY: `packed` holds LEFT_WORDS words.
                    unsafe { d.pack_left(terms, packed.as_mut_ptr()) };
                }
            }
        }
    }
}

/// Divides the totals by the sums of the exponentials, and writes the results.
pub(crate) struct Finish<'a> {
    of: &'a Rows<'a>,
    plan: &'a Plan,
    totals: &'a [f32],
    sums: &'a [f32],
}

impl<V: Vectors<f32>> Task<V> for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn compute(self, v: V) {
        let width = WIDTH * V::LANES;
        let n_rows = self.plan.rows().len();
        for (i, &row) in self.plan.rows().iter().enumerate() {
            let sum = fold(v, &self.sums[i * width..(i + 1) * width], |a, b| a + b);
            // A row that sees nothing has a sum of 0, and totals of 0.
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
                    // SAFETY: `out` holds LANES numbers.
                    unsafe { v.store(result, out.as_mut_ptr()) };
                } else {
                    let mut lanes = [0.0; MAX_LANES];
                    // SAFETY: `lanes` holds MAX_LANES numbers, as many as the longest vector.
                    unsafe { v.store(result, lanes.as_mut_ptr()) };
                    out.copy_from_slice(&lanes[..out.len()]);
                }
            }
        }
    }
}
