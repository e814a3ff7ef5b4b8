//! Differentiable attention for one element type, a tile of queries at a time. The backward pass recomputes the
//! probabilities.

mod backward;
mod key_sums;
mod several_blocks;
mod sums;
mod tile;

use crate::cpu::Cpu;
use crate::memory::{Recycled, lend, scratch::scratch};
use crate::products::Plain;
use crate::rows::activation::ActivationFunction;
use crate::rows::softmax::{Normalizer, Normalizers};
use crate::threads::{Shared, parallel};
use crate::vectors::{Slice, SliceMut, Stored};

use self::backward::TILES_PER_PART;
use self::several_blocks::Queries;
use self::tile::{BLOCK, Tile, pieces, queries_per_tile};
use super::head_rows::{multiply, rows};
use super::{AttentionGradients, BiasLayout, Differentiable, RelativeProducts, Written};

scratch! {
    /// A tile's queries and scores.
    TILE
}

impl Differentiable<'_> {
    /// Returns the bytes that the threads take for their tiles in the backward pass, at most. The forward pass takes less.
    pub fn scratch_bytes(&self, cpu: Cpu) -> usize {
        let (query, keys) = (self.query, self.key.seq);
        let group = query.heads / self.key.heads.max(1);
        let each = queries_per_tile(group);
        let rows = group * each.min(query.seq);
        let key_value = self.key.head_dim + self.value.head_dim;
        let at_once = match self.sinks {
            Some(_) => keys,
            None => keys.min(BLOCK),
        };
        let n_tiles = query.seq.div_ceil(each);
        let open = n_tiles.min(TILES_PER_PART) * rows * (query.head_dim + key_value);
        // One block's sums, and a part whose sums wait until those of the part before it are added. One more thread may hold
        // what it took in an earlier call.
        let sums = 2 * (at_once + keys) * key_value;
        // Products and their gradients.
        let relative = self.relative.map_or(0, |of| 2 * of.n_products(keys));
        let size = match query.data {
            Slice::F64(_) => size_of::<f64>(),
            _ => size_of::<f32>(),
        };
        let threads = cpu.threads.min(self.batch * self.key.heads * n_tiles) + 1;
        threads * (3 * rows * at_once + open + sums + relative) * size
    }

    /// Returns the length of the normalizers that the forward pass writes for the backward pass. It is 0 where all keys
    /// lie in one block, whose normalizers the backward pass computes again.
    pub fn n_normalizers(&self) -> usize {
        match self.sinks {
            None if self.key.seq > BLOCK => 2 * self.batch * self.query.seq * self.query.heads,
            _ => 0,
        }
    }

    /// Writes the result, `[batch · queries, n_heads · head_dim of the values]`, and the rows' normalizers, of which
    /// there are [`Self::n_normalizers`]. A query that sees no key gives zeros.
    ///
    /// # Panics
    /// If lengths or types do not match, or the type is a half type.
    pub fn forward(&self, cpu: Cpu, y: SliceMut, normalizers: SliceMut) {
        let to = [y, normalizers];
        match self.query.data {
            Slice::F32(_) => {
                let [y, normalizers] = to.map(f32::of_slice_mut);
                let [several_blocks, one_block] = self.by_blocks();
                let typed = Typed::<f32>::of(self);
                typed.forward(cpu, &one_block, [&mut *y, &mut *normalizers]);
                for queries in &several_blocks {
                    self.attend(cpu, queries, y, normalizers);
                }
            }
            Slice::F64(_) => {
                let all: Vec<Queries> = (0..self.batch).map(|i| (i, 0..self.query.seq)).collect();
                Typed::<f64>::of(self).forward(cpu, &all, to.map(f64::of_slice_mut));
            }
            Slice::F16(_) | Slice::Bf16(_) => {
                panic!("differentiable attention does not support half types")
            }
        }
    }

    /// Writes the gradients, given the result's gradient `dy`, and what the forward pass wrote if it has normalizers.
    ///
    /// # Panics
    /// If lengths or types do not match, or the type is a half type.
    pub fn backward(&self, cpu: Cpu, dy: Slice, forward: Option<Written>, to: AttentionGradients) {
        match self.query.data {
            Slice::F32(_) => Typed::<f32>::of(self).backward(cpu, (dy, forward), to),
            Slice::F64(_) => Typed::<f64>::of(self).backward(cpu, (dy, forward), to),
            Slice::F16(_) | Slice::Bf16(_) => {
                panic!("differentiable attention does not support half types")
            }
        }
    }
}

/// Multiplications below which the calling thread works alone.
const PARALLEL_FROM: usize = 1 << 18;

/// The same call with a static element type.
struct Typed<'a, T> {
    of: &'a Differentiable<'a>,
    biases: Vec<(&'a [T], BiasLayout)>,
}

impl<'a, T: Plain + Recycled + Stored> Typed<'a, T> {
    fn of(of: &'a Differentiable<'a>) -> Self {
        let lengths = [of.batch, of.query.heads, of.query.seq, of.key.seq];
        if let Some(relative) = of.relative {
            assert_eq!([of.key.heads, of.key.seq], [of.query.heads, of.query.seq]);
            relative.check(of.query.seq, of.batch * of.query.seq, of.query.heads);
        }
        let biases = of.biases.iter().map(|bias| {
            let data = T::of_slice(bias.data);
            bias.layout.check(lengths, data.len());
            (data, bias.layout)
        });
        Self {
            of,
            biases: biases.collect(),
        }
    }

    /// Returns how many query heads share a key/value head.
    fn group(&self) -> usize {
        self.of.query.heads / self.of.key.heads
    }

    fn threads(&self, cpu: Cpu) -> usize {
        let query = self.of.query;
        let work = self.of.batch * query.seq * query.heads * query.head_dim * self.of.key.seq;
        if work < PARALLEL_FROM { 1 } else { cpu.threads }
    }

    /// Computes some queries of some sequences. With relative embeddings these are whole sequences.
    fn forward(&self, cpu: Cpu, queries: &[Queries], [y, normalizers]: [&mut [T]; 2]) {
        let (query, value) = (self.of.query, self.of.value);
        let n_rows = self.of.batch * query.seq * query.heads;
        assert_eq!(y.len(), n_rows * value.head_dim);
        assert_eq!(normalizers.len(), self.of.n_normalizers());
        if y.is_empty() || value.seq == 0 {
            return y.fill(T::ZERO);
        }
        let each = self.queries_per_tile();
        let normalizers = (!normalizers.is_empty()).then(|| Shared::new(normalizers));
        let to = Shared::new(y);
        let tiles = queries.iter().map(|(sequence, queries)| {
            // A causal sequence's last queries see the most keys, and take the longest. They come first.
            let tiles = pieces(queries.clone(), each).rev();
            (*sequence, tiles.collect::<Vec<_>>())
        });
        // The tiles of a head share the products with relative embeddings.
        let tasks: Vec<(usize, Vec<_>)> = match self.of.relative {
            Some(_) => tiles.collect(),
            None => {
                let alone = tiles.flat_map(|(sequence, tiles)| {
                    tiles.into_iter().map(move |tile| (sequence, vec![tile]))
                });
                alone.collect()
            }
        };
        let n_heads = value.heads;
        parallel::for_tasks(self.threads(cpu), tasks.len() * n_heads, |task| {
            let (sequence, tiles) = &tasks[task / n_heads];
            let at = (*sequence, task % n_heads);
            let relative = self.relative(cpu, at);
            for queries in tiles {
                let tile = self.tile(at, queries.clone());
                self.forward_tile(cpu, &tile, relative.as_ref(), (&to, normalizers.as_ref()));
            }
        });
    }

    /// Computes the products with relative embeddings for a head in a sequence.
    fn relative(
        &self,
        cpu: Cpu,
        (sequence, head): (usize, usize),
    ) -> Option<RelativeProducts<'a, T>> {
        let lines = sequence * self.of.query.seq..(sequence + 1) * self.of.query.seq;
        let relative = self.of.relative.as_ref()?;
        Some(relative.of_head(cpu, lines, head))
    }

    fn forward_tile(
        &self,
        cpu: Cpu,
        tile: &Tile,
        relative: Option<&RelativeProducts<T>>,
        (to, to_normalizers): (&Shared<T>, Option<&Shared<T>>),
    ) {
        let (query, value) = (self.of.query, self.of.value);
        let n_rows = self.n_rows(tile);
        let n = n_rows * value.head_dim;
        let blocks = self.blocks(&tile.keys);
        let parts: Vec<Tile> = blocks.filter_map(|i| self.part_of(tile, i)).collect();
        let most = parts.iter().map(|part| self.memory_for(part)).max();
        let own = n_rows * query.head_dim + 2 * n;
        lend(TILE, own + most.unwrap_or(0), |memory| {
            let (queries, memory) = memory.split_at_mut(n_rows * query.head_dim);
            let (y, memory) = memory.split_at_mut(n);
            self.scaled_queries(tile, queries);
            y.fill(T::ZERO);
            let mut all = vec![Normalizer::<T>::NONE; n_rows];
            for part in &parts {
                let mut memory = self.divided(part, memory);
                let mut of_part = vec![Normalizer::NONE; n_rows];
                let normalizers = Normalizers::Written(&mut of_part);
                self.probabilities(cpu, part, queries, relative, &mut memory, normalizers);
                self.drop(part, memory.p);
                let values = value.positions((part.sequence, part.head), part.keys.clone());
                let result = &mut memory.rest[..n];
                multiply(cpu, rows(memory.p, part.keys.len()), values, result);
                Self::join((y, &mut all), (result, &of_part));
            }
            // SAFETY: no two tiles share a query in a head.
            unsafe { self.write_rows(tile, y, value.head_dim, to) };
            if let Some(to) = to_normalizers {
                let all = all.iter().flat_map(|of| [of.largest, of.total]);
                // SAFETY: as above.
                unsafe { self.write_rows(tile, &all.collect::<Vec<T>>(), 2, to) };
            }
        });
    }

    /// Writes a tile's rows, with `width` columns each.
    ///
    /// # Safety
    /// No other borrow of the tile's queries is in use.
    unsafe fn write_rows(&self, tile: &Tile, from: &[T], width: usize, to: &Shared<T>) {
        let query = self.of.query;
        for (row, from) in from.chunks_exact(width).enumerate() {
            let (head, position) = self.of_row(tile, row);
            let line = tile.sequence * query.seq + position;
            let start = (line * query.heads + head) * width;
            // SAFETY: the caller's promise.
            unsafe { to.range(start..start + width) }.copy_from_slice(from);
        }
    }
}

/// Computes `cap · tanh(x / cap)` elementwise.
fn capped<T: Plain>(cpu: Cpu, cap: f64, numbers: &mut [T]) {
    let cap = T::of(cap);
    numbers.iter_mut().for_each(|x| *x = *x / cap);
    ActivationFunction::Tanh.apply(cpu.isa, numbers);
    numbers.iter_mut().for_each(|x| *x = *x * cap);
}

/// Multiplies gradients by the soft cap's slope, `1 - tanh²`, given the capped products.
fn capped_slope<T: Plain>(cap: f64, capped: &[T], gradients: &mut [T]) {
    for (gradient, &capped) in gradients.iter_mut().zip(capped) {
        let tanh = capped / T::of(cap);
        *gradient = *gradient * (T::of(1.0) - tanh * tanh);
    }
}

#[cfg(test)]
mod tests;
