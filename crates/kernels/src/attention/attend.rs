//! Multi-head attention, `softmax(scale · q·kᵀ + biases)·v`, which keeps scores for one tile at a time only.
//!
//! A task computes some queries in the heads that share a key/value head. Its keys and values are packed in chunks
//! of positions ([`chunk`](super::chunk)), either for this call or earlier ([`KeyValuePanels`]). A chunk has as many
//! positions as the format's products sum in registers. Each query tile ([`query_tile`](super::query_tile)) makes
//! two passes over its chunks:
//!
//! ```text
//! pass 1   for each chunk: scores = queries · keysᵀ, biases, masks; each row's maximum so far
//!          (all chunks' scores stay in the L1 and L2 caches)
//! pass 2   for each chunk: exponentials of scores minus the maximum, their sums, and · values
//! end      totals / sums
//! ```
//!
//! Two passes over cached scores cost less than an online softmax, which would also make a row's bits depend on
//! where its blocks begin. The products' operands are f32 or bfloat16 ([`OperandFormat`]). Everything else is f32.
//!
//! **Summation order.** Products sum as in [`multiply`](crate::products::multiply). In the second product, chunks
//! begin at multiples of the chunk length. Exponentials are added in as many lanes as two vectors have, and the
//! division by their sum comes last. A hidden key adds an exact zero at any position. A row's bits therefore depend
//! only on its query, and on the visible keys and values with their positions. Other rows, batch size, threads,
//! trailing padding and earlier packing have no influence.

use std::ops::Range;

use bytemuck::{cast_slice, cast_slice_mut};
use half::bf16;

use super::{
    AttentionKernel, Chunk, Fill, Group, Heads, KeyMask, KeyValue, Operand, OperandFormat,
    QueryRows, Scoring, Shape, TileMemory, Values, WithAttentionKernel,
};
use crate::cpu::Cpu;
use crate::memory::{lend, scratch::scratch};
use crate::threads::{Target, parallel};

/// Computes attention for all queries. Row `i` in `out` receives query `i`'s result: `n_heads` heads with `head_dim`
/// columns each, starting at column 0. Rows in `out` are `out.len() / n_rows` apart. Columns between them are not
/// written.
///
/// A query that sees no key, or only scores of `-inf`, gives zeros.
///
/// # Panics
/// If lengths do not match, or panels were packed for another instruction set, format or shape.
pub fn attend(
    cpu: Cpu,
    stored: OperandFormat,
    shape: &Shape,
    scoring: &Scoring,
    query: Heads,
    key_value: KeyValue,
    out: &mut [f32],
) {
    attend_with_normalizers(cpu, stored, (shape, scoring), query, key_value, out, None);
}

/// Computes [`attend`], and writes each query's normalizers if requested: for each head its largest score and the sum of its
/// exponentials after that is subtracted, `[rows, n_heads, 2]`, both 0 for a query that sees no key.
pub(super) fn attend_with_normalizers(
    cpu: Cpu,
    stored: OperandFormat,
    (shape, scoring): (&Shape, &Scoring),
    query: Heads,
    key_value: KeyValue,
    out: &mut [f32],
    normalizers: Option<&mut [f32]>,
) {
    let n_rows = shape.queries.n_rows();
    let width = shape.n_heads * shape.head_dim;
    if n_rows == 0 || width == 0 {
        return;
    }
    assert!(out.len().is_multiple_of(n_rows) && out.len() / n_rows >= width);
    shape.check();
    query.check(n_rows, width);
    key_value.check(cpu.isa, stored, shape);
    scoring.check(shape, key_value.longest(), |sequence| {
        key_value.positions(sequence).end
    });
    let work = (n_rows * width).saturating_mul(key_value.longest());
    let threads = if work < PARALLEL_FROM { 1 } else { cpu.threads };
    let row_length = out.len() / n_rows;
    let call = Call {
        shape,
        scoring,
        query,
        key_value,
        out: Target::row_major(out, n_rows, row_length),
        normalizers: normalizers.map(|of| Target::row_major(of, n_rows, 2 * shape.n_heads)),
        threads,
        cpu,
    };
    match stored {
        OperandFormat::F32 => call.compute(&*f32::kernel(cpu.isa)),
        OperandFormat::Bf16 => call.compute(&*bf16::kernel(cpu.isa)),
    }
}

/// Multiplications for the scores below which the calling thread works alone. They take about 10 µs, and the product
/// with the values takes as long again. Waking another thread costs as much.
const PARALLEL_FROM: usize = 1 << 18;

scratch! {
    /// Packed keys and values for one task.
    PACKED
}

scratch! {
    /// Queries, scores, exponentials and sums for one tile.
    TILE
}

/// The arguments to [`attend`].
struct Call<'a> {
    shape: &'a Shape<'a>,
    scoring: &'a Scoring<'a>,
    query: Heads<'a>,
    key_value: KeyValue<'a>,
    out: Target<'a, f32>,
    normalizers: Option<Target<'a, f32>>,
    threads: usize,
    cpu: Cpu,
}

impl<'a> Call<'a> {
    fn compute<F: Operand>(&self, kernel: &dyn AttentionKernel<F>) {
        let n_kv_heads = self.shape.n_kv_heads;
        let n_heads = self.shape.queries.batch() * n_kv_heads;
        let n_parts = self.n_parts(n_heads, kernel.rows());
        parallel::for_tasks(self.threads, n_heads * n_parts, |task| {
            let (head, part) = (task / n_parts, task % n_parts);
            let (sequence, head) = (head / n_kv_heads, head % n_kv_heads);
            let n_rows = self.shape.queries.rows(sequence).len() * self.shape.group();
            // The last queries in a causal sequence see the most keys, and take the longest. They come first, so
            // that no thread is left with a long task at the end.
            let part = n_parts - 1 - part;
            let rows = part * n_rows / n_parts..(part + 1) * n_rows / n_parts;
            self.head(kernel, sequence, head, rows);
        });
    }

    /// Returns how many parts each key/value head's rows are divided into: enough to keep all threads busy to the
    /// end, few enough that packing keys and values for each part costs little.
    fn n_parts(&self, n_heads: usize, tile: usize) -> usize {
        // The rows of a head share the products with relative embeddings.
        if self.threads == 1 || self.scoring.relative.is_some() {
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

    /// Computes some rows for one key/value head in one sequence.
    fn head<F: Operand>(
        &self,
        kernel: &dyn AttentionKernel<F>,
        sequence: usize,
        head: usize,
        part: Range<usize>,
    ) {
        let lines = self.shape.queries.rows(sequence);
        let relative = self.scoring.relative.as_ref();
        let rows = QueryRows {
            first_line: lines.start,
            group: Group {
                shape: self.shape,
                scoring: self.scoring,
                sequence,
                first_head: head * self.shape.group(),
                key_mask: KeyMask::new(self.scoring, sequence, &self.key_value.positions(sequence)),
                relative: relative.map(|of| of.of_head(self.cpu, lines, head)),
            },
            query: self.query,
            layout: kernel.layout(self.shape.head_dim),
            out: &self.out,
            normalizers: self.normalizers.as_ref(),
        };
        let span = rows.group.span(&part, rows.layout);
        match self.key_value {
            KeyValue::Packed(panels) => {
                let chunk = |index| panels[sequence].chunk::<F>(head, index);
                self.tiles(kernel, &rows, part, &span, &chunk);
            }
            KeyValue::Projected { keys, key, value } => {
                let layout = rows.layout;
                let first_row = keys.rows(sequence).start;
                let first = span.start / F::CHUNK;
                let n_chunks = span.end.div_ceil(F::CHUNK) - first;
                lend(PACKED, n_chunks * layout.len(), |memory: &mut [u32]| {
                    let mut values = Values::Finite;
                    for (i, memory) in memory.chunks_exact_mut(layout.len()).enumerate() {
                        let start = span.start.max((first + i) * F::CHUNK);
                        let end = span.end.min((first + i + 1) * F::CHUNK);
                        let view =
                            |heads: Heads<'a>| heads.view(first_row, end, head, layout.head_dim);
                        kernel.fill(Fill {
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
                    self.tiles(kernel, &rows, part, &span, &chunk);
                });
            }
        }
    }

    /// Computes some rows for one key/value head, tile by tile. All visible positions are within `span`.
    fn tiles<'c, F: Operand>(
        &self,
        kernel: &dyn AttentionKernel<F>,
        rows: &QueryRows,
        part: Range<usize>,
        span: &Range<usize>,
        chunk: &dyn Fn(usize) -> Chunk<'c, F>,
    ) {
        let n_tiles = part.len().div_ceil(kernel.rows());
        let length = TileMemory::len(kernel, rows.layout, kernel.rows(), span.len());
        lend(TILE, length, |memory| {
            let start = |tile: usize| part.start + tile * part.len() / n_tiles;
            for tile in 0..n_tiles {
                let tile_rows = start(tile)..start(tile + 1);
                kernel.with_tiles(tile_rows.len(), &mut || {
                    rows.tile(kernel, tile_rows.clone(), chunk, memory);
                });
            }
        });
    }
}
