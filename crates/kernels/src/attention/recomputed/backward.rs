//! The backward pass, a tile of queries at a time.

use std::sync::{Mutex, PoisonError};

use super::key_sums::{InOrder, KeyGradients};
use super::sums::{BiasGradient, HeadRelative, SharedGradients};
use super::tile::Tile;
use super::{Differentiable, TILE, Typed, capped_slope, multiply, rows};
use crate::attention::{AttentionGradients, HeadRows, TermGradients};
use crate::cpu::Cpu;
use crate::memory::{Recycled, lend};
use crate::products::Plain;
use crate::rows::softmax::backward_here;
use crate::threads::{Shared, parallel};
use crate::vectors::Stored;

/// The tiles whose gradients for keys and values one thread sums. The parts' sums are added in a fixed order.
const TILES_PER_PART: usize = 8;

/// The gradients' destinations, and the result's gradient.
struct Backward<'a, T> {
    dy: HeadRows<'a>,
    query: Shared<'a, T>,
    key: Shared<'a, T>,
    value: Shared<'a, T>,
    sums: SharedGradients<'a, T>,
}

impl<T: Plain + Recycled + Stored> Typed<'_, T> {
    pub(super) fn backward(&self, cpu: Cpu, dy: &[T], to: AttentionGradients) {
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
        let backward = Backward {
            dy: HeadRows {
                data: T::slice(dy),
                seq: query.seq,
                heads: query.heads,
                head_dim: value.head_dim,
                row_stride: query.heads * value.head_dim,
                offset: 0,
            },
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
        let in_order = || Mutex::new(InOrder::default());
        let of_heads: Vec<Mutex<InOrder<T>>> = (0..n_heads).map(|_| in_order()).collect();
        let at = |head: usize| (head / key.heads, head % key.heads);
        let part = |head: usize, part: usize, relative: Option<&mut HeadRelative<T>>| {
            let at = at(head);
            // A causal sequence's last queries see the most keys, and take the longest. They come first.
            let gradients = self.part(cpu, at, n_parts - 1 - part, relative, &backward);
            let mut of_head = of_heads[head]
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            of_head.add(part, gradients, |gradients| {
                for (of, from, to) in [
                    (key, &gradients.key, &backward.key),
                    (value, &gradients.value, &backward.value),
                ] {
                    let (sequence, head) = at;
                    let first = sequence * of.seq + gradients.keys.start;
                    for (row, from) in from.chunks_exact(of.head_dim).enumerate() {
                        let start = ((first + row) * of.heads + head) * of.head_dim;
                        // SAFETY: only the thread with this head's lock writes to it.
                        let to = unsafe { to.range(start..start + of.head_dim) };
                        to.iter_mut().zip(from).for_each(|(to, &x)| *to += x);
                    }
                }
            });
        };
        match backward.sums.is_empty() {
            true => parallel::for_tasks(self.threads(cpu), n_heads * n_parts, |task| {
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

    /// Writes the queries' gradients for some tiles, and returns their sums for keys and values.
    fn part(
        &self,
        cpu: Cpu,
        at: (usize, usize),
        part: usize,
        mut relative: Option<&mut HeadRelative<T>>,
        backward: &Backward<T>,
    ) -> KeyGradients<T> {
        let first = part * TILES_PER_PART;
        let each = self.queries_per_tile();
        let tiles = first..(first + TILES_PER_PART).min(self.of.query.seq.div_ceil(each));
        let tiles: Vec<Tile> = tiles.map(|index| self.tile(at, index, each)).collect();
        let dims = [self.of.key.head_dim, self.of.value.head_dim];
        let mut gradients = KeyGradients::zeros(&tiles, dims);
        for tile in tiles.iter().filter(|tile| !tile.keys.is_empty()) {
            self.backward_tile(cpu, tile, relative.as_deref_mut(), backward, &mut gradients);
        }
        gradients
    }

    /// Computes one tile's gradients. With probabilities `p` and `dp = dy·vᵀ`: `dv = pᵀ·dy`, `ds = p · (dp - Σ
    /// p·dp)`, `dq = scale · ds·k`, `dk = dsᵀ·(scale · q)`. Dropout, the soft cap and the biases come in between.
    fn backward_tile(
        &self,
        cpu: Cpu,
        tile: &Tile,
        relative: Option<&mut HeadRelative<T>>,
        backward: &Backward<T>,
        gradients: &mut KeyGradients<T>,
    ) {
        let &Differentiable {
            query, key, value, ..
        } = self.of;
        let (n, n_keys) = (self.n_rows(tile), tile.keys.len());
        let widest = key.head_dim.max(value.head_dim);
        let rest = n * (n_keys + value.head_dim) + n.max(n_keys) * widest;
        lend(TILE, self.memory_for(tile) + rest, |memory| {
            let mut memory = self.divided(tile, memory);
            let products = relative.as_ref().map(|of| &of.products);
            let mut sinks = self.probabilities(cpu, tile, products, &mut memory, None);
            let (p, ds) = (&*memory.p, memory.scores);
            let (dp, rest) = memory.rest.split_at_mut(n * n_keys);
            let (dy, product) = rest.split_at_mut(n * value.head_dim);
            self.stack(backward.dy, tile, T::of(1.0), dy);
            let dy = rows(dy, value.head_dim);
            let dropped = match self.of.dropped {
                None => p,
                Some(_) => {
                    ds.copy_from_slice(p);
                    self.drop(tile, ds);
                    &*ds
                }
            };
            let dv = &mut product[..n_keys * value.head_dim];
            multiply(cpu, rows(dropped, n_keys).transposed(), dy, dv);
            gradients.add_values(tile, dv);
            let at = (tile.sequence, tile.head);
            let values = value.positions(at, tile.keys.clone());
            multiply(cpu, dy, values.transposed(), dp);
            self.drop(tile, dp);
            backward_here(cpu.isa, p, dp, ds, n_keys, sinks.as_deref_mut());
            self.add_to(&backward.sums, tile, ds, sinks.as_deref(), relative);
            if let Some(cap) = self.of.soft_cap {
                self.products(cpu, tile, memory.queries, dp);
                capped_slope(cap, dp, ds);
            }
            let (ds, queries) = (rows(ds, n_keys), rows(memory.queries, query.head_dim));
            let dk = &mut product[..n_keys * key.head_dim];
            multiply(cpu, ds.transposed(), queries, dk);
            gradients.add_keys(tile, dk);
            let dq = &mut product[..n * query.head_dim];
            multiply(cpu, ds, key.positions(at, tile.keys.clone()), dq);
            let scale = T::of(self.of.scale);
            dq.iter_mut().for_each(|dq| *dq = *dq * scale);
            // SAFETY: no two tiles share a query in a head.
            unsafe { self.write_rows(tile, dq, query.head_dim, &backward.query) };
        });
    }
}
