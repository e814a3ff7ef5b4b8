//! The backward pass, a tile of queries and a block of keys at a time.

use std::iter::zip;
use std::sync::{Mutex, PoisonError};

use super::key_sums::{InOrder, KeyGradients};
use super::sums::{BiasGradient, HeadRelative, SharedGradients};
use super::tile::{Tile, pieces};
use super::{Differentiable, TILE, Typed, capped_slope, multiply, rows};
use crate::attention::plan::smallest_range;
use crate::attention::{AttentionGradients, HeadRows, TermGradients, Written};
use crate::cpu::Cpu;
use crate::memory::{Buffer, Recycled, lend};
use crate::products::{Plain, add_product};
use crate::rows::softmax::{Means, Normalizer, Normalizers, backward_here};
use crate::threads::{Shared, parallel};
use crate::vectors::{Element, Slice, Stored};

/// The tiles whose gradients for keys and values one thread sums. The parts' sums are added in a fixed order.
pub(super) const TILES_PER_PART: usize = 8;

/// The gradients' destinations, and the result's gradient.
struct Backward<'a, T> {
    dy: HeadRows<'a>,
    /// The result, and its rows' normalizers, two elements in each row and head.
    forward: Option<[HeadRows<'a>; 2]>,
    query: Shared<'a, T>,
    key: Shared<'a, T>,
    value: Shared<'a, T>,
    sums: SharedGradients<'a, T>,
}

impl<T: Plain + Recycled + Stored> Typed<'_, T> {
    pub(super) fn backward(
        &self,
        cpu: Cpu,
        (dy, forward): (Slice, Option<Written>),
        to: AttentionGradients,
    ) {
        let &Differentiable {
            batch,
            query,
            key,
            value,
            ..
        } = self.of;
        let [dq, dk, dv] = [to.query, to.key, to.value].map(T::of_slice_mut);
        for (gradient, of) in [(&dq, query), (&dk, key), (&dv, value)] {
            assert_eq!(gradient.len(), batch * of.seq * of.heads * of.head_dim);
        }
        for gradient in [&mut *dq, dk, dv] {
            gradient.fill(T::ZERO);
        }
        if dq.is_empty() || dk.is_empty() || dv.is_empty() {
            return;
        }
        let biases = to.biases.into_iter().zip(&self.biases);
        let biases: Vec<BiasGradient<T>> = biases
            .filter_map(|(gradient, &(_, layout))| {
                let to = Shared::new(T::of_slice_mut(gradient?));
                Some(BiasGradient { to, layout })
            })
            .collect();
        let relative = to.relative.into_iter().map(|[content, table]| {
            let [content, table] = [content, table].map(|to| Shared::new(T::of_slice_mut(to)));
            TermGradients { content, table }
        });
        let relative: Vec<_> = relative.collect();
        let sinks = to.sinks.map(|sinks| Shared::new(T::of_slice_mut(sinks)));
        let of_rows = |data, head_dim| HeadRows {
            data,
            seq: query.seq,
            heads: query.heads,
            head_dim,
            row_stride: query.heads * head_dim,
            offset: 0,
        };
        let backward = Backward {
            dy: of_rows(dy, value.head_dim),
            forward: forward.map(|Written { y, normalizers }| {
                assert_eq!(normalizers.len(), self.of.n_normalizers());
                [of_rows(y, value.head_dim), of_rows(normalizers, 2)]
            }),
            query: Shared::new(dq),
            key: Shared::new(dk),
            value: Shared::new(dv),
            sums: SharedGradients {
                biases,
                relative,
                sinks,
            },
        };
        let n_tiles = query.seq.div_ceil(self.queries_per_tile());
        let n_parts = n_tiles.div_ceil(TILES_PER_PART);
        let n_heads = batch * key.heads;
        let n_blocks = self.blocks(&(0..key.seq)).len();
        let in_order = (0..n_heads * n_blocks).map(|_| Mutex::default());
        let of_blocks: Vec<Mutex<InOrder<T>>> = in_order.collect();
        let at = |head: usize| (head / key.heads, head % key.heads);
        let part = |head: usize, part: usize, relative: Option<&mut HeadRelative<T>>| {
            let at = at(head);
            // A causal sequence's last queries see the most keys, and take the longest. They come first.
            let queries = n_parts - 1 - part;
            self.part(cpu, at, queries, relative, &backward, |block, gradients| {
                let mut of_block = of_blocks[head * n_blocks + block]
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner);
                // SAFETY: only the thread with the lock of these keys writes to them.
                of_block.add(part, gradients, |of| unsafe {
                    self.add_keys(at, of, &backward)
                });
            });
        };
        match backward.sums.is_empty() {
            // A part's gradients for a block are kept until those of the parts before it are added.
            true => parallel::for_tasks_in_order(self.threads(cpu), n_heads * n_parts, |task| {
                part(task / n_parts, task % n_parts, None);
            }),
            false => {
                let at_once = self.at_once(&backward.sums);
                parallel::for_tasks(self.threads(cpu), at_once, |first| {
                    for head in (first..n_heads).step_by(at_once) {
                        let mut relative = self.relative(cpu, at(head)).map(|products| {
                            let sums = products.zeros();
                            HeadRelative { products, sums }
                        });
                        (0..n_parts).for_each(|index| part(head, index, relative.as_mut()));
                        if let Some(HeadRelative { products, sums }) = &relative {
                            // SAFETY: concurrent tasks have different heads, and a task's sequences follow each other.
                            unsafe { products.backward(cpu, sums, &backward.sums.relative) };
                        }
                    }
                });
            }
        }
    }

    /// Writes the queries' gradients for some tiles, and passes each block's sums for keys and values to `add`, if a tile
    /// sees keys there.
    fn part(
        &self,
        cpu: Cpu,
        at: (usize, usize),
        part: usize,
        mut relative: Option<&mut HeadRelative<T>>,
        backward: &Backward<T>,
        add: impl Fn(usize, Option<KeyGradients<T>>),
    ) {
        let first = part * TILES_PER_PART;
        let each = self.queries_per_tile();
        let end = ((first + TILES_PER_PART) * each).min(self.of.query.seq);
        let tiles = pieces(first * each..end, each).map(|queries| self.tile(at, queries));
        let tiles = tiles.filter(|tile| !tile.keys.is_empty());
        let mut tiles: Vec<_> = tiles.map(|tile| self.open(tile, backward)).collect();
        let keys = smallest_range(tiles.iter().map(|of| of.tile.keys.clone()));
        let dims = [self.of.key.head_dim, self.of.value.head_dim];
        for block in self.blocks(&(0..self.of.key.seq)) {
            let Some(keys) = self.keys_in(&keys, block) else {
                add(block, None);
                continue;
            };
            let mut gradients = KeyGradients::zeros(keys, dims);
            for of in &mut tiles {
                let Some(part) = self.part_of(&of.tile, block) else {
                    continue;
                };
                let relative = relative.as_deref_mut();
                self.backward_part(cpu, (&part, of), relative, &backward.sums, &mut gradients);
            }
            add(block, Some(gradients));
        }
        for mut of in tiles {
            let scale = T::of(self.of.scale);
            of.dq.iter_mut().for_each(|dq| *dq = *dq * scale);
            // SAFETY: no two tiles share a query in a head.
            unsafe { self.write_rows(&of.tile, &of.dq, self.of.query.head_dim, &backward.query) };
        }
    }

    /// Adds some queries' gradients for keys and values to those of their head.
    ///
    /// # Safety
    /// No other borrow of these keys in this head is in use.
    unsafe fn add_keys(
        &self,
        (sequence, head): (usize, usize),
        gradients: &KeyGradients<T>,
        backward: &Backward<T>,
    ) {
        for (of, from, to) in [
            (self.of.key, &gradients.key, &backward.key),
            (self.of.value, &gradients.value, &backward.value),
        ] {
            let first = sequence * of.seq + gradients.keys.start;
            for (row, from) in from.chunks_exact(of.head_dim).enumerate() {
                let start = ((first + row) * of.heads + head) * of.head_dim;
                // SAFETY: the caller's promise.
                let to = unsafe { to.range(start..start + of.head_dim) };
                to.iter_mut().zip(from).for_each(|(to, &x)| *to += x);
            }
        }
    }

    /// Reads a tile's rows.
    fn open(&self, tile: Tile, backward: &Backward<T>) -> OpenTile<T> {
        let n = self.n_rows(&tile);
        let stacked = |heads: HeadRows| {
            let mut rows = Buffer::new(n * heads.head_dim);
            self.stack(heads, &tile, T::of(1.0), &mut rows);
            rows
        };
        let mut queries = Buffer::new(n * self.of.query.head_dim);
        self.scaled_queries(&tile, &mut queries);
        let mut dq = Buffer::new(queries.len());
        dq.fill(T::ZERO);
        let (dy, dy_width) = (stacked(backward.dy), backward.dy.head_dim);
        let in_several = self.blocks(&tile.keys).len() > 1;
        let whole_rows = in_several.then(|| {
            let forward = backward
                .forward
                .expect("rows with several blocks have normalizers");
            let [y, normalizers] = forward.map(stacked);
            let (y, dy) = (y.chunks_exact(dy_width), dy.chunks_exact(dy_width));
            let means = zip(y, dy).map(|(y, dy)| {
                let mut sum = <T as Element>::Wide::ZERO;
                zip(y, dy).for_each(|(y, dy)| sum += Element::to_wide(*y) * Element::to_wide(*dy));
                T::from_wide(sum)
            });
            let normalizers = normalizers.chunks_exact(2).map(|of| Normalizer {
                largest: of[0],
                total: of[1],
            });
            WholeRows {
                means: means.collect(),
                normalizers: normalizers.collect(),
            }
        });
        OpenTile {
            tile,
            queries,
            dy,
            dq,
            whole_rows,
        }
    }

    /// Computes the gradients of a tile's part. With probabilities `p` and `dp = dy·vᵀ`: `dv = pᵀ·dy`, `ds = p · (dp - Σ
    /// p·dp)`, `dq = scale · ds·k`, `dk = dsᵀ·(scale · q)`. Dropout, the soft cap and the biases come in between.
    fn backward_part(
        &self,
        cpu: Cpu,
        (part, of): (&Tile, &mut OpenTile<T>),
        relative: Option<&mut HeadRelative<T>>,
        sums: &SharedGradients<T>,
        gradients: &mut KeyGradients<T>,
    ) {
        let &Differentiable {
            query, key, value, ..
        } = self.of;
        let (n, n_keys) = (self.n_rows(part), part.keys.len());
        lend(TILE, self.memory_for(part) + n * n_keys, |memory| {
            let mut memory = self.divided(part, memory);
            let products = relative.as_ref().map(|of| &of.products);
            let normalizers = match &of.whole_rows {
                Some(rows) => Normalizers::Read(&rows.normalizers),
                None => Normalizers::Unused,
            };
            let mut sinks =
                self.probabilities(cpu, part, &of.queries, products, &mut memory, normalizers);
            let (p, ds) = (&*memory.p, memory.scores);
            let dp = &mut memory.rest[..n * n_keys];
            let dy = rows(&of.dy, value.head_dim);
            let dropped = match self.of.dropped {
                None => p,
                Some(_) => {
                    ds.copy_from_slice(p);
                    self.drop(part, ds);
                    &*ds
                }
            };
            let dv = gradients.value(part);
            add_product(cpu.alone(), rows(dropped, n_keys).transposed(), dy, dv);
            let at = (part.sequence, part.head);
            let values = value.positions(at, part.keys.clone());
            multiply(cpu, dy, values.transposed(), dp);
            self.drop(part, dp);
            let means = match &of.whole_rows {
                Some(rows) => Means::Given(&rows.means),
                None => Means::Computed {
                    sinks: sinks.as_deref_mut(),
                },
            };
            backward_here(cpu.isa, p, dp, ds, n_keys, means);
            self.add_to(sums, part, ds, sinks.as_deref(), relative);
            if let Some(cap) = self.of.soft_cap {
                self.products(cpu, part, &of.queries, dp);
                capped_slope(cap, dp, ds);
            }
            let (ds, queries) = (rows(ds, n_keys), rows(&of.queries, query.head_dim));
            add_product(cpu.alone(), ds.transposed(), queries, gradients.key(part));
            let keys = key.positions(at, part.keys.clone());
            add_product(cpu.alone(), ds, keys, &mut of.dq);
        });
    }
}

/// A tile while the blocks of its keys follow each other.
struct OpenTile<T: Recycled> {
    tile: Tile,
    /// Queries times the scale, `[rows, head_dim]`.
    queries: Buffer<T>,
    /// The result's gradient.
    dy: Buffer<T>,
    /// The sum of the blocks before, without the scale.
    dq: Buffer<T>,
    /// Given if the keys lie in several blocks.
    whole_rows: Option<WholeRows<T>>,
}

/// Statistics of whole rows, which each part of a tile reads.
struct WholeRows<T> {
    normalizers: Vec<Normalizer<T>>,
    /// `Σ p·dp`
    means: Vec<T>,
}
