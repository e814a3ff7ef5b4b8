//! Attention of all heads, `softmax(scale · q·kᵀ + biases)·v`, with no more scores in memory than the
//! rows of one tile need.
//!
//! A task is some queries of the heads that share a key/value head. Its keys and values lie in chunks
//! of positions as the matrix products read them ([`chunk`]), as many as the format's products sum at a time: packed for this call, or long
//! before ([`KeyValuePanels`]). Of each tile of queries ([`rows`]) all scores are computed into memory
//! that the first caches hold, then a softmax of each row, then the product with the values. Two
//! passes over a row that is near cost less than an online softmax, which would tie a row's bits to
//! where its blocks begin. The products' operands are f32 or bfloat16 ([`Stored`]); all else is f32.
//!
//! **The order of addition** is that of [`gemm`](super::gemm), with the chunks of the second product at
//! multiples of as many positions; the exponentials are added in as many lanes as two vectors have,
//! and the sum divides last. An unseen key adds an exact zero, wherever it stands. So a row's bits
//! depend on its query, and the keys and values it sees at their positions: not on the other rows, the
//! batch, the threads, on padding behind it, nor on whether keys and values were packed before.

mod arithmetic;
mod cache;
mod chunk;
mod exp;
mod mask;
mod operands;
mod plan;
mod rows;
mod softmax;
mod tile_memory;

use std::{cell::Cell, ops::Range};

use bytemuck::{cast_slice, cast_slice_mut};

pub use arithmetic::{Arithmetic, Stored};
pub use cache::{KeyValuePanels, PanelShape};
pub use mask::{Bias, Scoring};
pub use operands::{Heads, KeyValue, Sequences, Shape};

use self::{
    arithmetic::{AnyOperands, Operand, OperandDots, OperandTask},
    chunk::{Chunk, Fill, Layout, Values},
    mask::Kept,
    plan::Group,
    rows::Rows,
    tile_memory::TileMemory,
};
use super::{
    isa::Isa,
    parallel,
    rows::Target,
    scratch::{Aligned, Scratch, lend},
};

/// Attention of all queries: rows of `out` as those of [`Heads`] with `n_heads` heads at column 0, as
/// far apart as `out` is longer than there are rows; what lies between them stays as it is.
///
/// A query that sees nothing, or nothing but scores of `-inf`, gives zeros.
///
/// # Panics
/// If lengths do not fit, or panels were packed for another level, format or shape.
pub fn attend(
    arithmetic: Arithmetic,
    shape: &Shape,
    scoring: &Scoring,
    query: Heads,
    key_value: KeyValue,
    out: &mut [f32],
    threads: usize,
) {
    let n_rows = shape.queries.n_rows();
    let width = shape.n_heads * shape.head_dim;
    if n_rows == 0 || width == 0 {
        return;
    }
    assert!(out.len().is_multiple_of(n_rows) && out.len() / n_rows >= width);
    shape.check();
    query.check(n_rows, width);
    key_value.check(arithmetic, shape);
    scoring.check(shape, &key_value);
    let work = (n_rows * width).saturating_mul(key_value.longest());
    let threads = if work < PARALLEL_FROM { 1 } else { threads };
    let row_length = out.len() / n_rows;
    let call = Call {
        shape,
        scoring,
        query,
        key_value,
        out: Target::row_major(out, n_rows, row_length),
        threads,
    };
    arithmetic.run(call);
}

/// Fewer multiplications for the scores than this stay on the calling thread, which takes some 10 µs
/// for so many and as many again; to wake another costs as much.
const PARALLEL_FROM: usize = 1 << 18;

thread_local! {
    /// Keys and values of one task.
    static PACKED: Cell<Aligned<u32>> = const { Cell::new(Aligned::empty()) };
    /// Queries, scores and sums of one tile.
    static TILE: Cell<Aligned<f32>> = const { Cell::new(Aligned::empty()) };
}

fn packed_scratch() -> &'static Scratch<u32> {
    &PACKED
}

fn tile_scratch() -> &'static Scratch<f32> {
    &TILE
}

/// One call of [`attend`].
struct Call<'a> {
    shape: &'a Shape<'a>,
    scoring: &'a Scoring<'a>,
    query: Heads<'a>,
    key_value: KeyValue<'a>,
    out: Target<'a, f32>,
    threads: usize,
}

impl AnyOperands for Call<'_> {
    fn run<F: Operand>(self, isa: Isa) {
        F::run_operands(isa, self);
    }
}

impl<F: Operand> OperandTask<F> for Call<'_> {
    fn run<D: OperandDots<F>>(self, d: D) {
        let n_kv_heads = self.shape.n_kv_heads;
        let n_heads = self.shape.queries.batch() * n_kv_heads;
        let n_parts = self.n_parts(n_heads, D::ROWS);
        parallel::for_tasks(self.threads, n_heads * n_parts, |task| {
            let (head, part) = (task / n_parts, task % n_parts);
            let (sequence, head) = (head / n_kv_heads, head % n_kv_heads);
            let n_rows = self.shape.queries.rows(sequence).len() * self.shape.group();
            // The last queries of a causal sequence see most, and so take longest: they come first.
            let part = n_parts - 1 - part;
            let rows = part * n_rows / n_parts..(part + 1) * n_rows / n_parts;
            self.head(d, sequence, head, rows);
        });
    }
}

impl<'a> Call<'a> {
    /// Parts to cut the rows of each of so many key/value heads in: enough to keep all threads busy to
    /// the end, and few enough that packing for each does not show.
    fn n_parts(&self, n_heads: usize, tile: usize) -> usize {
        if self.threads == 1 {
            return 1;
        }
        let least = match self.key_value {
            KeyValue::Projected { .. } => 8 * tile,
            KeyValue::Packed(_) => tile,
        };
        let n_rows = self.shape.queries.longest() * self.shape.group();
        let wanted = (4 * self.threads).div_ceil(n_heads);
        wanted.min(n_rows.div_ceil(least)).max(1)
    }

    /// Some rows of a key/value head.
    fn head<F: Operand, D: OperandDots<F>>(
        &self,
        d: D,
        sequence: usize,
        head: usize,
        part: Range<usize>,
    ) {
        let rows = Rows {
            group: Group {
                shape: self.shape,
                scoring: self.scoring,
                sequence,
                first_head: head * self.shape.group(),
                kept: Kept::of(self.scoring, sequence, &self.key_value.positions(sequence)),
            },
            first_line: self.shape.queries.rows(sequence).start,
            query: self.query,
            layout: Layout::new::<F, D>(self.shape.head_dim),
            out: &self.out,
        };
        let span = rows.group.span(&part, rows.layout);
        match self.key_value {
            KeyValue::Packed(panels) => {
                let chunk = |index| panels.chunk::<F>(sequence, head, index);
                self.tiles(d, &rows, part, &span, chunk);
            }
            KeyValue::Projected { keys, key, value } => {
                let layout = rows.layout;
                let first_row = keys.rows(sequence).start;
                let first = span.start / F::CHUNK;
                let n_chunks = span.end.div_ceil(F::CHUNK) - first;
                lend(packed_scratch(), n_chunks * layout.len(), |memory| {
                    let mut values = Values::Finite;
                    for (i, memory) in memory.chunks_exact_mut(layout.len()).enumerate() {
                        let start = span.start.max((first + i) * F::CHUNK);
                        let end = span.end.min((first + i + 1) * F::CHUNK);
                        let view =
                            |heads: Heads<'a>| heads.view(first_row, end, head, layout.head_dim);
                        d.enter(Fill::<F> {
                            layout,
                            key: view(key),
                            value: view(value),
                            rows: start..end,
                            position: start % F::CHUNK,
                            memory: cast_slice_mut(memory),
                            values: &mut values,
                        });
                    }
                    let chunk = |index: usize| Chunk::<F> {
                        layout,
                        memory: cast_slice(
                            &memory[(index - first) * layout.len()..][..layout.len()],
                        ),
                        values,
                    };
                    self.tiles(d, &rows, part, &span, chunk);
                });
            }
        }
    }

    /// All tiles of some rows, which see no more than the span.
    fn tiles<'c, F: Operand, D: OperandDots<F>>(
        &self,
        d: D,
        rows: &Rows,
        part: Range<usize>,
        span: &Range<usize>,
        chunk: impl Fn(usize) -> Chunk<'c, F>,
    ) {
        let n_tiles = part.len().div_ceil(D::ROWS);
        lend(
            tile_scratch(),
            TileMemory::len::<D>(rows.layout, D::ROWS, span.len()),
            |memory| {
                let start = |tile: usize| part.start + tile * part.len() / n_tiles;
                for tile in 0..n_tiles {
                    rows.tile(d, start(tile)..start(tile + 1), &chunk, memory);
                }
            },
        );
    }
}

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
