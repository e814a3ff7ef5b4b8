//! Attention of all heads, `softmax(scale · q·kᵀ + biases)·v`, with no more scores in memory than the
//! rows of one tile need.
//!
//! A task is some queries of the heads that share a key/value head. Its keys and values lie in chunks
//! of [`CHUNK`] positions as the matrix products read them ([`chunk`]): packed for this call, or long
//! before ([`KeyValuePanels`]). Of each tile of queries ([`rows`]) all scores are computed into memory
//! that the first caches hold, then a softmax of each row, then the product with the values. Two
//! passes over a row that is near cost less than an online softmax, which would tie a row's bits to
//! where its blocks begin.
//!
//! **The order of addition** is that of [`gemm`](super::gemm), with the chunks of the second product at
//! multiples of [`CHUNK`] positions; the exponentials are added in as many lanes as two vectors have,
//! and the sum divides last. An unseen key adds an exact zero, wherever it stands. So a row's bits
//! depend on its query, and the keys and values it sees at their positions: not on the other rows, the
//! batch, the threads, on padding behind it, nor on whether keys and values were packed before.

mod cache;
mod chunk;
mod exp;
mod mask;
mod rows;
mod softmax;

use std::{cell::Cell, ops::Range};

pub use cache::KeyValuePanels;
pub use mask::{Bias, Scoring};

use self::{
    chunk::{Chunk, Fill, Layout, Values},
    mask::Kept,
    rows::Rows,
};
use super::{
    arch::{Kernels, Task, Vectors},
    isa::Isa,
    parallel,
    rows::Target,
    scratch::{Aligned, Scratch, lend},
    tile::CHUNK,
    view::View,
};

/// How many of everything there are.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Sequences.
    pub batch: usize,
    /// Queries of each sequence.
    pub queries: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key/value heads; each serves `n_heads / n_kv_heads` query heads, neighbours.
    pub n_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
}

/// Queries, keys or values where a projection left them: position `s` of sequence `b` of `seq`
/// positions is row `b · seq + s`, and head `h` its columns from `offset + h · head_dim` on.
#[derive(Clone, Copy, Debug)]
pub struct Heads<'a> {
    /// All rows.
    pub data: &'a [f32],
    /// From one row to the next.
    pub row_stride: usize,
    /// The first head's first column.
    pub offset: usize,
}

impl<'a> Heads<'a> {
    /// From a row's head on.
    fn from(&self, row: usize, head: usize, head_dim: usize) -> &'a [f32] {
        &self.data[row * self.row_stride + self.offset + head * head_dim..]
    }

    /// `[rows, head_dim]` of a head, from a row on.
    fn view(&self, first: usize, rows: usize, head: usize, head_dim: usize) -> View<'a, f32> {
        let data = if rows == 0 {
            &[]
        } else {
            self.from(first, head, head_dim)
        };
        View::new(data, (rows, head_dim), (self.row_stride, 1))
    }

    /// # Panics
    /// If so many rows of so many heads reach beyond the data.
    fn check(&self, rows: usize, width: usize) {
        let end = rows.checked_sub(1).map_or(Some(0), |last| {
            let start = last.checked_mul(self.row_stride)?;
            start.checked_add(self.offset)?.checked_add(width)
        });
        assert!(
            end.is_some_and(|end| end <= self.data.len()),
            "heads beyond their data"
        );
    }
}

/// What queries attend to.
#[derive(Clone, Copy, Debug)]
pub enum KeyValue<'a> {
    /// Rows that a projection has just made.
    Projected {
        /// Positions of each sequence.
        keys: usize,
        /// `n_kv_heads` heads.
        key: Heads<'a>,
        /// `n_kv_heads` heads.
        value: Heads<'a>,
    },
    /// Positions packed before. Counting starts at the first that was ever appended.
    Packed(&'a KeyValuePanels),
}

impl KeyValue<'_> {
    /// The positions there are, counted from the first ever.
    fn positions(&self) -> Range<usize> {
        match self {
            Self::Projected { keys, .. } => 0..*keys,
            Self::Packed(panels) => panels.positions(),
        }
    }
}

/// Attention of all queries: rows of `out` as those of [`Heads`] with `n_heads` heads at column 0, as
/// far apart as `out` is longer than `batch · queries`; what lies between them stays as it is.
///
/// A query that sees nothing, or nothing but scores of `-inf`, gives zeros.
///
/// # Panics
/// If lengths do not fit, or panels were packed for another level or shape.
pub fn attend(
    isa: Isa,
    shape: &Shape,
    scoring: &Scoring,
    query: Heads,
    key_value: KeyValue,
    out: &mut [f32],
    threads: usize,
) {
    let n_rows = shape.batch * shape.queries;
    let width = shape.n_heads * shape.head_dim;
    if n_rows == 0 || width == 0 {
        return;
    }
    let group = shape.n_heads / shape.n_kv_heads;
    assert_eq!(group * shape.n_kv_heads, shape.n_heads, "heads to share");
    assert!(out.len().is_multiple_of(n_rows) && out.len() / n_rows >= width);
    query.check(n_rows, width);
    let positions = key_value.positions();
    match key_value {
        KeyValue::Projected { keys, key, value } => {
            key.check(shape.batch * keys, shape.n_kv_heads * shape.head_dim);
            value.check(shape.batch * keys, shape.n_kv_heads * shape.head_dim);
        }
        KeyValue::Packed(panels) => panels.check(isa, shape),
    }
    scoring.check(shape, positions.end);
    let work = (n_rows * width).saturating_mul(positions.len());
    let threads = if work < PARALLEL_FROM { 1 } else { threads };
    let row_length = out.len() / n_rows;
    let call = Call {
        shape,
        scoring,
        query,
        key_value,
        positions,
        out: Target::row_major(out, n_rows, row_length),
        threads,
    };
    f32::run(isa, call);
}

/// Fewer multiplications for the scores than this stay on the calling thread, which takes some 10 µs
/// for so many and as many again; to wake another costs as much.
const PARALLEL_FROM: usize = 1 << 18;

thread_local! {
    /// Keys and values of one task.
    static PACKED: Cell<Aligned<f32>> = const { Cell::new(Aligned::empty()) };
    /// Queries, scores and sums of one tile.
    static TILE: Cell<Aligned<f32>> = const { Cell::new(Aligned::empty()) };
}

fn packed_scratch() -> &'static Scratch<f32> {
    &PACKED
}

fn tile_scratch() -> &'static Scratch<f32> {
    &TILE
}

/// One call of [`attend`].
struct Call<'a> {
    shape: &'a Shape,
    scoring: &'a Scoring<'a>,
    query: Heads<'a>,
    key_value: KeyValue<'a>,
    positions: Range<usize>,
    out: Target<'a, f32>,
    threads: usize,
}

impl Task<f32> for Call<'_> {
    fn run<V: Vectors<f32>>(self, v: V) {
        let Shape {
            batch, n_kv_heads, ..
        } = *self.shape;
        let group = self.shape.n_heads / n_kv_heads;
        let n_rows = self.shape.queries * group;
        let n_parts = self.n_parts(n_rows, V::ROWS);
        parallel::for_tasks(self.threads, batch * n_kv_heads * n_parts, |task| {
            let (head, part) = (task / n_parts, task % n_parts);
            // The last queries of a causal sequence see most, and so take longest: they come first.
            let part = n_parts - 1 - part;
            let rows = part * n_rows / n_parts..(part + 1) * n_rows / n_parts;
            self.head(v, head / n_kv_heads, head % n_kv_heads, rows);
        });
    }
}

impl<'a> Call<'a> {
    /// Parts to cut a key/value head's rows in: enough to keep all threads busy to the end, and few
    /// enough that packing for each does not show.
    fn n_parts(&self, n_rows: usize, tile: usize) -> usize {
        if self.threads == 1 {
            return 1;
        }
        let least = match self.key_value {
            KeyValue::Projected { .. } => 8 * tile,
            KeyValue::Packed(_) => tile,
        };
        let wanted = (4 * self.threads).div_ceil(self.shape.batch * self.shape.n_kv_heads);
        wanted.min(n_rows.div_ceil(least)).max(1)
    }

    /// Some rows of a key/value head.
    fn head<V: Vectors<f32>>(&self, v: V, sequence: usize, head: usize, part: Range<usize>) {
        let rows = Rows {
            shape: self.shape,
            scoring: self.scoring,
            query: self.query,
            sequence,
            first_head: head * (self.shape.n_heads / self.shape.n_kv_heads),
            kept: Kept::of(self.scoring, sequence, &self.positions),
            layout: Layout::new::<V>(self.shape.head_dim),
            out: &self.out,
        };
        let span = rows.span(part.clone());
        match self.key_value {
            KeyValue::Packed(panels) => {
                let chunk = |index| panels.chunk(sequence, head, index);
                self.tiles(v, &rows, part, &span, chunk);
            }
            KeyValue::Projected { keys, key, value } => {
                let layout = rows.layout;
                let first = span.start / CHUNK;
                let n_chunks = span.end.div_ceil(CHUNK) - first;
                lend(packed_scratch(), n_chunks * layout.len(), |memory| {
                    let mut values = Values::Finite;
                    for (i, memory) in memory.chunks_exact_mut(layout.len()).enumerate() {
                        let start = span.start.max((first + i) * CHUNK);
                        let end = span.end.min((first + i + 1) * CHUNK);
                        let view = |heads: Heads<'a>| {
                            heads.view(sequence * keys, end, head, layout.head_dim)
                        };
                        v.run(Fill {
                            layout,
                            key: view(key),
                            value: view(value),
                            rows: start..end,
                            position: start % CHUNK,
                            memory,
                            values: &mut values,
                        });
                    }
                    let chunk = |index: usize| Chunk {
                        layout,
                        memory: &memory[(index - first) * layout.len()..][..layout.len()],
                        values,
                    };
                    self.tiles(v, &rows, part, &span, chunk);
                });
            }
        }
    }

    /// All tiles of some rows, which see no more than the span.
    fn tiles<'c, V: Vectors<f32>>(
        &self,
        v: V,
        rows: &Rows,
        part: Range<usize>,
        span: &Range<usize>,
        chunk: impl Fn(usize) -> Chunk<'c>,
    ) {
        let n_tiles = part.len().div_ceil(V::ROWS);
        lend(
            tile_scratch(),
            rows.memory_len(V::ROWS, span.len()),
            |memory| {
                for tile in 0..n_tiles {
                    let start = part.start + tile * part.len() / n_tiles;
                    let end = part.start + (tile + 1) * part.len() / n_tiles;
                    rows.tile(v, start..end, &chunk, memory);
                }
            },
        );
    }
}

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
