//! Attention on slices, forward and backward: what [`Mix`](super::Mix) computes.

use super::{
    super::{softmax::Reach, storage::Float},
    heads::{Form, Heads, Sizes},
};
use crate::cpu::{
    gemm::{self, Epilogue, Plain},
    isa::Isa,
    parallel,
    recycled::{Buffer, Recycled},
    softmax::{self, Seen},
    view::View,
};

/// Attention of whole tensors. A task is one key/value head of one sequence, with the query heads that share
/// it.
pub struct Task<'a, T> {
    pub isa: Isa,
    pub query: Heads<'a, T>,
    pub key: Heads<'a, T>,
    pub value: Heads<'a, T>,
    pub scale: T,
    pub keep: Option<&'a [u8]>,
    pub reach: Reach,
}

impl<T: Float + Plain + Recycled> Task<'_, T> {
    /// Query heads that share a key/value head.
    fn group(&self) -> usize {
        self.query.sizes.heads / self.key.sizes.heads
    }

    /// Writes the result, `[batch, queries, n_heads · head_dim]`.
    pub fn forward_all(&self, y: &mut [T]) {
        let (group, sizes) = (self.group(), self.value.sizes);
        let length = group * self.query.sizes.seq * sizes.head_dim;
        if y.is_empty() || sizes.seq == 0 {
            return y.fill(T::ZERO); // a query that sees no key gives zeros
        }
        let mut pieces = Buffer::new(sizes.batch * sizes.heads * length);
        parallel::for_pieces(self.threads(), &mut pieces, length, |i, y| {
            let query = self.stacked_queries(i);
            multiply(
                self.isa,
                rows(&self.probabilities(i, &query), sizes.seq),
                self.value.matrix(i),
                y,
            );
        });
        let sizes = Sizes {
            heads: self.query.sizes.heads,
            seq: self.query.sizes.seq,
            form: Form::Rows,
            ..sizes
        };
        let head = sizes.seq * sizes.head_dim;
        sizes.lay_out(&pieces, |batch, i| (batch * sizes.heads + i) * head, y);
    }

    /// Writes the gradients of query, key and value to `to`, each contiguous in the shape of its tensor.
    pub fn backward_all(&self, dy: Heads<T>, to: [&mut [T]; 3]) {
        let all = [self.query.sizes, self.key.sizes, self.value.sizes];
        let n_tasks = all[1].batch * all[1].heads;
        let lengths = all.map(|sizes| sizes.elements() / n_tasks.max(1));
        let length: usize = lengths.iter().sum();
        if n_tasks * length == 0 || all[1].seq == 0 {
            return to.into_iter().for_each(|to| to.fill(T::ZERO));
        }
        let mut pieces = Buffer::new(n_tasks * length); // for each task: dq, dk, dv
        parallel::for_pieces(self.threads(), &mut pieces, length, |i, gradients| {
            let (dq, rest) = gradients.split_at_mut(lengths[0]);
            let (dk, dv) = rest.split_at_mut(lengths[1]);
            self.backward(i, dy, dq, dk, dv);
        });
        let starts = [0, lengths[0], lengths[0] + lengths[1]];
        for ((to, sizes), first) in to.into_iter().zip(all).zip(starts) {
            let per_task = sizes.heads / all[1].heads;
            let head = sizes.seq * sizes.head_dim;
            let start = |batch: usize, i: usize| {
                let task = batch * all[1].heads + i / per_task;
                task * length + first + i % per_task * head
            };
            sizes.lay_out(&pieces, start, to);
        }
    }

    /// The gradients of one task. With `p` the probabilities and `dp = dy·vᵀ`: `dv = pᵀ·dy`,
    /// `ds = p · (dp - Σ p·dp)`, `dq = scale · ds·k`, `dk = dsᵀ·(scale · q)`.
    fn backward(&self, i: usize, dy: Heads<T>, dq: &mut [T], dk: &mut [T], dv: &mut [T]) {
        let (isa, keys) = (self.isa, self.key.sizes.seq);
        let query = self.stacked_queries(i);
        let dy = dy.stacked(i, self.group(), |x| x);
        let p = self.probabilities(i, &query);
        let dy = rows(&dy, self.value.sizes.head_dim);
        multiply(isa, rows(&p, keys).transposed(), dy, dv);
        let mut dp = Buffer::new(p.len());
        multiply(isa, dy, self.value.matrix(i).transposed(), &mut dp);
        let mut ds = Buffer::new(p.len());
        softmax::backward_here(isa, &p, &dp, &mut ds, keys);
        let ds = rows(&ds, keys);
        multiply(isa, ds, self.key.matrix(i), dq);
        for dq in dq {
            *dq *= self.scale;
        }
        let query = rows(&query, self.query.sizes.head_dim);
        multiply(isa, ds.transposed(), query, dk);
    }

    /// The queries of a task times the scale, head after head: `[group · queries, head_dim]`.
    fn stacked_queries(&self, i: usize) -> Vec<T> {
        self.query.stacked(i, self.group(), |x| x * self.scale)
    }

    /// The probabilities of a task, `[group · queries, keys]`.
    fn probabilities(&self, i: usize, query: &[T]) -> Buffer<T> {
        let (queries, keys) = (self.query.sizes.seq, self.key.sizes.seq);
        let query = rows(query, self.query.sizes.head_dim);
        let mut scores = Buffer::new(query.rows() * keys);
        let key = self.key.matrix(i).transposed();
        multiply(self.isa, query, key, &mut scores);
        let batch = i / self.key.sizes.heads;
        let keep = self.keep.map(|keep| &keep[batch * keys..][..keys]);
        let mut probabilities = Buffer::new(scores.len());
        softmax::forward_here(self.isa, &scores, &mut probabilities, keys, |row| Seen {
            range: self.reach.range(row % queries, keys),
            keep,
        });
        probabilities
    }

    fn threads(&self) -> usize {
        let work = self.query.sizes.elements() * self.key.sizes.seq;
        if work < PARALLEL_FROM {
            1
        } else {
            crate::ops::threads()
        }
    }
}

/// Multiplications below which all work stays on the calling thread.
const PARALLEL_FROM: usize = 1 << 18;

/// Rows without gaps as a matrix `[data.len() / width, width]`.
fn rows<T: Float>(data: &[T], width: usize) -> View<'_, T> {
    View::new(data, (data.len() / width.max(1), width), (width, 1))
}

/// `y = a·b`, on the calling thread: the tasks are what is parallel.
fn multiply<T: Plain>(isa: Isa, a: View<T>, b: View<T>, y: &mut [T]) {
    gemm::multiply(isa, a, b, &Epilogue::NONE, y, 1);
}
