//! A tile: some queries in the heads that share a key/value head, with the keys visible to them.

use std::iter::repeat_n;
use std::ops::Range;

use super::{Typed, capped, multiply, rows};
use crate::attention::mask::without_hidden_ends;
use crate::attention::plan::smallest_range;
use crate::attention::{BiasLayout, Dropped, HeadRows, RelativeProducts};
use crate::cpu::Cpu;
use crate::memory::Recycled;
use crate::products::Plain;
use crate::rows::softmax::{Normalizer, Normalizers, PerRow, VisibleElements, forward_here};
use crate::vectors::Stored;

/// The rows in a tile, a query in one head each. More if more heads share a key/value head.
pub(super) const ROWS: usize = 128;

/// The keys in a block: the scores of a tile for one block stay in the second-level cache. Blocks begin at multiples of
/// this, so that a row's sums do not depend on the other rows in its tile.
pub(super) const BLOCK: usize = 1024;

/// Some queries in the heads that share a key/value head, with the keys visible to them.
#[derive(Clone, Debug)]
pub(super) struct Tile {
    pub sequence: usize,
    /// The key/value head.
    pub head: usize,
    pub queries: Range<usize>,
    /// The smallest range with all visible keys, extended to where a sum over all keys would start a chunk.
    pub keys: Range<usize>,
}

/// A tile's working memory. The contents are unspecified.
pub(super) struct TileMemory<'a, T> {
    /// Probabilities, `[rows, keys]`.
    pub p: &'a mut [T],
    /// More memory for `[rows, keys]`.
    pub scores: &'a mut [T],
    pub rest: &'a mut [T],
}

/// Returns how many queries a tile has, if `group` heads share a key head.
pub(super) fn queries_per_tile(group: usize) -> usize {
    (ROWS / group).max(1)
}

/// Divides a range into pieces of `each`, and the rest.
pub(super) fn pieces(
    all: Range<usize>,
    each: usize,
) -> impl DoubleEndedIterator<Item = Range<usize>> {
    let starts = all.clone().step_by(each);
    starts.map(move |start| start..(start + each).min(all.end))
}

impl<T: Plain + Recycled + Stored> Typed<'_, T> {
    /// Returns how many queries a tile has.
    pub(super) fn queries_per_tile(&self) -> usize {
        queries_per_tile(self.group())
    }

    /// Returns the tile of some queries.
    pub(super) fn tile(&self, (sequence, head): (usize, usize), queries: Range<usize>) -> Tile {
        let of = self.of;
        let mut keys = smallest_range(queries.clone().map(|query| (of.reach)(query)));
        keys.end = keys.end.min(of.key.seq);
        if let Some(keep) = self.keep(sequence) {
            keys = without_hidden_ends(keep, keys);
        }
        keys.start = match keys.is_empty() {
            true => keys.end,
            false => keys.start / T::CHUNK * T::CHUNK,
        };
        Tile {
            sequence,
            head,
            queries,
            keys,
        }
    }

    /// Returns a sequence's key mask.
    fn keep(&self, sequence: usize) -> Option<&[u8]> {
        let keys = self.of.key.seq;
        Some(&self.of.keep?[sequence * keys..][..keys])
    }

    /// Returns a tile's row count.
    pub(super) fn n_rows(&self, tile: &Tile) -> usize {
        self.group() * tile.queries.len()
    }

    /// Returns a row's query head and query.
    pub(super) fn of_row(&self, tile: &Tile, row: usize) -> (usize, usize) {
        let n = tile.queries.len();
        (
            tile.head * self.group() + row / n,
            tile.queries.start + row % n,
        )
    }

    /// Divides `memory`, whose length is at least [`Self::memory_for`].
    pub(super) fn divided<'m>(&self, tile: &Tile, memory: &'m mut [T]) -> TileMemory<'m, T> {
        let n = self.n_rows(tile) * tile.keys.len();
        let (p, rest) = memory.split_at_mut(n);
        let (scores, rest) = rest.split_at_mut(n);
        TileMemory { p, scores, rest }
    }

    /// Returns how many elements a tile's memory has without [`TileMemory::rest`].
    pub(super) fn memory_for(&self, tile: &Tile) -> usize {
        2 * self.n_rows(tile) * tile.keys.len()
    }

    /// Writes the tile's rows of some query heads times a factor, `[rows, head_dim]`.
    pub(super) fn stack(&self, heads: HeadRows, tile: &Tile, factor: T, to: &mut [T]) {
        let data = T::of_slice(heads.data);
        for (row, to) in to.chunks_exact_mut(heads.head_dim).enumerate() {
            let (head, query) = self.of_row(tile, row);
            let start = (tile.sequence * heads.seq + query) * heads.row_stride + heads.offset;
            let from = &data[start + head * heads.head_dim..][..heads.head_dim];
            to.iter_mut()
                .zip(from)
                .for_each(|(to, &x)| *to = x * factor);
        }
    }

    /// Writes the tile's scaled queries, `[rows, head_dim]`.
    pub(super) fn scaled_queries(&self, tile: &Tile, to: &mut [T]) {
        self.stack(self.of.query, tile, T::of(self.of.scale), to);
    }

    /// Writes the probabilities before dropout, given the scaled queries. Returns the sinks' probabilities, one per row.
    pub(super) fn probabilities(
        &self,
        cpu: Cpu,
        tile: &Tile,
        queries: &[T],
        relative: Option<&RelativeProducts<T>>,
        memory: &mut TileMemory<T>,
        normalizers: Normalizers<T>,
    ) -> Option<Vec<T>> {
        self.products(cpu, tile, queries, memory.scores);
        let (n, scores) = (tile.keys.len(), &mut *memory.scores);
        if let Some(relative) = relative {
            for (query, scores) in tile.queries.clone().zip(scores.chunks_exact_mut(n)) {
                relative.add_to(query, tile.keys.start, scores);
            }
        }
        for &(bias, layout) in &self.biases {
            for (row, scores) in scores.chunks_exact_mut(n).enumerate() {
                let bias = &bias[self.at(layout, tile, row)..];
                match layout.key_stride() {
                    1 => scores
                        .iter_mut()
                        .zip(bias)
                        .for_each(|(score, &bias)| *score += bias),
                    stride => {
                        for (key, score) in scores.iter_mut().enumerate() {
                            *score += bias[key * stride];
                        }
                    }
                }
            }
        }
        let keep = self
            .keep(tile.sequence)
            .map(|keep| &keep[tile.keys.clone()]);
        let group = self.group();
        let mut sinks = self.of.sinks.map(|sinks| {
            let group_sinks = &T::of_slice(sinks)[tile.head * group..][..group];
            let row_sinks = group_sinks
                .iter()
                .flat_map(|&sink| repeat_n(sink, tile.queries.len()));
            row_sinks.collect::<Vec<T>>()
        });
        let beside = PerRow {
            sinks: sinks.as_deref_mut(),
            normalizers,
        };
        forward_here(cpu.isa, scores, memory.p, n, beside, |row| {
            let seen = (self.of.reach)(self.of_row(tile, row).1);
            let within = |key: usize| key.clamp(tile.keys.start, tile.keys.end) - tile.keys.start;
            VisibleElements {
                range: within(seen.start)..within(seen.end),
                keep,
            }
        });
        sinks
    }

    /// Returns the indices of the blocks with these keys. With sinks, all keys are one block, because a sink belongs to one
    /// softmax.
    pub(super) fn blocks(&self, keys: &Range<usize>) -> Range<usize> {
        match self.of.sinks {
            _ if keys.is_empty() => 0..0,
            Some(_) => 0..1,
            None => keys.start / BLOCK..keys.end.div_ceil(BLOCK),
        }
    }

    /// Returns the part of a tile whose keys lie in a block, if there are any.
    pub(super) fn part_of(&self, tile: &Tile, block: usize) -> Option<Tile> {
        let keys = self.keys_in(&tile.keys, block)?;
        Some(Tile {
            keys,
            ..tile.clone()
        })
    }

    /// Returns those keys that lie in a block, if there are any.
    pub(super) fn keys_in(&self, keys: &Range<usize>, block: usize) -> Option<Range<usize>> {
        let within = match self.of.sinks {
            Some(_) => keys.clone(),
            None => (block * BLOCK).max(keys.start)..((block + 1) * BLOCK).min(keys.end),
        };
        (!within.is_empty()).then_some(within)
    }

    /// Adds a part's result, `[rows, width]` each, to that of the parts before it. Each result is normalized by its own
    /// part. A row that only one part sees has that part's bits.
    pub(super) fn join(
        (y, all): (&mut [T], &mut [Normalizer<T>]),
        (part, of_part): (&[T], &[Normalizer<T>]),
    ) {
        let width = y.len() / all.len().max(1);
        let rows = y.chunks_exact_mut(width).zip(part.chunks_exact(width));
        for ((y, part), (all, of_part)) in rows.zip(all.iter_mut().zip(of_part)) {
            if of_part.total == T::ZERO {
                continue;
            }
            if all.total == T::ZERO {
                y.copy_from_slice(part);
                *all = *of_part;
                continue;
            }
            let largest = all.largest.at_least(of_part.largest);
            let before = all.total * (all.largest - largest).exp();
            let new = of_part.total * (of_part.largest - largest).exp();
            let total = before + new;
            let shares = [before / total, new / total];
            for (y, &part) in y.iter_mut().zip(part) {
                *y = *y * shares[0] + part * shares[1];
            }
            *all = Normalizer { largest, total };
        }
    }

    /// Writes the products of queries and keys, capped.
    pub(super) fn products(&self, cpu: Cpu, tile: &Tile, queries: &[T], to: &mut [T]) {
        let keys = self
            .of
            .key
            .positions((tile.sequence, tile.head), tile.keys.clone());
        multiply(
            cpu,
            rows(queries, self.of.query.head_dim),
            keys.transposed(),
            to,
        );
        if let Some(cap) = self.of.soft_cap {
            capped(cpu, cap, to);
        }
    }

    /// Returns the index of a bias's element for a row at the tile's first key.
    pub(super) fn at(&self, layout: BiasLayout, tile: &Tile, row: usize) -> usize {
        let (head, query) = self.of_row(tile, row);
        layout.index([tile.sequence, head, query, tile.keys.start])
    }

    /// Applies dropout to a tile's probabilities, or to their gradients.
    pub(super) fn drop(&self, tile: &Tile, numbers: &mut [T]) {
        let Some(Dropped { keep, divisor }) = self.of.dropped else {
            return;
        };
        let (divisor, query, keys) = (T::of(divisor), self.of.query, self.of.key.seq);
        for (row, numbers) in numbers.chunks_exact_mut(tile.keys.len()).enumerate() {
            let (head, position) = self.of_row(tile, row);
            let row = (tile.sequence * query.heads + head) * query.seq + position;
            let keep = &keep[row * keys + tile.keys.start..];
            for (x, &keep) in numbers.iter_mut().zip(keep) {
                *x = if keep == 0 { T::ZERO } else { *x / divisor };
            }
        }
    }
}
