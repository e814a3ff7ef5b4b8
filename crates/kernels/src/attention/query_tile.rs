//! A query tile, from packing to results: scores, softmax, product with the values.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};

use super::{
    AttentionKernel, Chunk, DivideTotals, Exponentiate, NearTile, Operand, PackQueries, QueryRows,
    Score, TileMemory, TilePlan, Values, exp::larger, plan::SpanPart,
};
use crate::products::Total;

impl QueryRows<'_> {
    /// Computes a tile of rows. `chunk(i)` returns chunk number `i` with keys and values.
    pub(crate) fn tile<'c, F: Operand>(
        &self,
        kernel: &dyn AttentionKernel<F>,
        rows: Range<usize>,
        chunk: &dyn Fn(usize) -> Chunk<'c, F>,
        memory: &mut [f32],
    ) {
        let plan = TilePlan::new(&self.group, rows, self.layout);
        if plan.span.is_empty() {
            for &row in plan.rows() {
                self.out(row).fill(0.0);
                self.write_normalizer(row, [0.0; 2]);
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
        let width = self.layout.width;
        if let Some(sinks) = self.group.scoring.sinks {
            for (row, largest) in plan
                .rows()
                .iter()
                .zip(memory.largest.chunks_exact_mut(width))
            {
                largest[0] = larger(largest[0], sinks[row.head]);
            }
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
        kernel.divide(DivideTotals {
            of: self,
            plan: &plan,
            totals: memory.totals,
            sums: memory.sums,
            largest: memory.largest,
        });
    }

    /// Returns the range for a piece's scores in the tile's memory.
    fn scores_of(&self, plan: &TilePlan, piece: &SpanPart) -> Range<usize> {
        let width = self.layout.width;
        let start = piece.positions.start - plan.span.start;
        let end = start + piece.positions.len().next_multiple_of(width);
        start * plan.rows().len()..end * plan.rows().len()
    }

    fn multiply_keys<F: Operand>(
        &self,
        kernel: &dyn AttentionKernel<F>,
        plan: &TilePlan,
        piece: &SpanPart,
        chunk: &Chunk<F>,
        memory: &mut TileMemory<F>,
    ) {
        let (width, head_dim) = (self.layout.width, self.layout.head_dim);
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
                    total: Total::New.of_chunk(part),
                });
            }
        }
    }

    fn multiply_values<F: Operand>(
        &self,
        kernel: &dyn AttentionKernel<F>,
        plan: &TilePlan,
        piece: &SpanPart,
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
                        kernel.with_tiles(1, &mut || {
                            kernel.multiply(NearTile {
                                rows: 1,
                                a: &exponentials[row * kernel.row_words()..],
                                b: memory.values,
                                totals: &mut tile.totals[row * width..(row + 1) * width],
                                ..tile
                            });
                        });
                    }
                }
            }
        }
    }

    /// Copies a piece's values, with zeros at positions hidden from a row, so that their NaN do not affect it.
    fn copy_seen<F: Operand>(
        &self,
        seen: &Range<usize>,
        piece: &SpanPart,
        values: &[F::Word],
        copy: &mut [F::Word],
    ) {
        let width = self.layout.width;
        let bits = u32::BITS / F::GROUP as u32;
        let sees = |position: usize| {
            piece.positions.contains(&position)
                && seen.contains(&position)
                && self.group.key_mask.has(position)
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
}
