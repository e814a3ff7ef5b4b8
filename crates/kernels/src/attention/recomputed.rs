//! Differentiable attention for one element type. The backward pass recomputes the probabilities.

mod sums;

use std::iter::repeat_n;

use self::sums::{BiasGradient, SharedGradients};
use super::{AttentionGradients, BiasLayout, Differentiable, Dropped, HeadRows};
use crate::memory::{Buffer, Recycled};
use crate::products::{Epilogue, Plain, View, multiply_views};
use crate::rows::softmax::{VisibleElements, backward_here, forward_here};
use crate::threads::{Shared, parallel};
use crate::vectors::{Slice, SliceMut, Stored};
use crate::{cpu::Cpu, rows::activation::ActivationFunction};

impl<'a> Differentiable<'a> {
    fn operands(&self) -> [HeadRows<'a>; 3] {
        [self.query, self.key, self.value]
    }

    /// Writes the result, `[batch · queries, n_heads · head_dim of the values]`. A query that sees no key gives
    /// zeros.
    ///
    /// # Panics
    /// If lengths or types do not match, or the type is a half type.
    pub fn forward(&self, cpu: Cpu, y: SliceMut) {
        match self.query.data {
            Slice::F32(_) => Typed::<f32>::of(self).forward(cpu, f32::of_slice_mut(y)),
            Slice::F64(_) => Typed::<f64>::of(self).forward(cpu, f64::of_slice_mut(y)),
            Slice::F16(_) | Slice::Bf16(_) => {
                panic!("differentiable attention does not support half types")
            }
        }
    }

    /// Writes the gradients, given the result's gradient `dy`.
    ///
    /// # Panics
    /// If lengths or types do not match, or the type is a half type.
    pub fn backward(&self, cpu: Cpu, dy: Slice, to: AttentionGradients) {
        match self.query.data {
            Slice::F32(_) => Typed::<f32>::of(self).backward(cpu, f32::of_slice(dy), to),
            Slice::F64(_) => Typed::<f64>::of(self).backward(cpu, f64::of_slice(dy), to),
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

    fn forward(&self, cpu: Cpu, y: &mut [T]) {
        let (batch, query, value) = (self.of.batch, self.of.query, self.of.value);
        let (group, n_tasks) = (self.group(), batch * value.heads);
        assert_eq!(y.len(), batch * query.seq * query.heads * value.head_dim);
        if y.is_empty() || value.seq == 0 {
            return y.fill(T::ZERO);
        }
        let to = Shared::new(y);
        parallel::for_tasks(self.threads(cpu), n_tasks, |task| {
            let (sequence, head) = (task / value.heads, task % value.heads);
            let queries = self.stacked(query, sequence, head * group, group, self.scale());
            let (mut p, _) = self.probabilities(cpu, sequence, head, &queries);
            self.drop(sequence, head, &mut p);
            let mut mixed = Buffer::new(group * query.seq * value.head_dim);
            let (p, values) = (rows(&p, value.seq), value.head(sequence, head));
            multiply(cpu, p, values, &mut mixed);
            let of = HeadRows {
                head_dim: value.head_dim,
                ..query
            };
            // SAFETY: no two tasks share a head in a sequence.
            unsafe { write_heads(&mixed, of, sequence, head * group, &to) };
        });
    }

    fn backward(&self, cpu: Cpu, dy: &[T], to: AttentionGradients) {
        let (batch, [query, key, value]) = (self.of.batch, self.of.operands());
        let [dq, dk, dv] = [to.query, to.key, to.value].map(T::of_slice_mut);
        for (gradient, of) in [(&dq, query), (&dk, key), (&dv, value)] {
            assert_eq!(gradient.len(), batch * of.seq * of.heads * of.head_dim);
        }
        if dq.is_empty() || dk.is_empty() || dv.is_empty() {
            return [dq, dk, dv]
                .into_iter()
                .for_each(|gradient| gradient.fill(T::ZERO));
        }
        let biases = to.biases.into_iter().zip(&self.biases);
        let biases: Vec<BiasGradient<T>> = biases
            .filter_map(|(gradient, &(_, layout))| {
                let to = Shared::new(T::of_slice_mut(gradient?));
                Some(BiasGradient { to, layout })
            })
            .collect();
        let dy = HeadRows {
            data: T::slice(dy),
            seq: query.seq,
            heads: query.heads,
            head_dim: value.head_dim,
            row_stride: query.heads * value.head_dim,
            offset: 0,
        };
        let sinks = to.sinks.map(|sinks| Shared::new(T::of_slice_mut(sinks)));
        let to = [dq, dk, dv].map(Shared::new);
        let sums = SharedGradients { biases, sinks };
        let at_once = self.at_once(&sums);
        let in_turn = batch * key.heads / at_once;
        parallel::for_tasks(self.threads(cpu), at_once, |first| {
            for turn in 0..in_turn {
                let task = turn * at_once + first;
                self.backward_task(cpu, (task / key.heads, task % key.heads), dy, &to, &sums);
            }
        });
    }

    /// Computes one task's gradients. With probabilities `p` and `dp = dy·vᵀ`: `dv = pᵀ·dy`, `ds = p · (dp - Σ
    /// p·dp)`, `dq = scale · ds·k`, `dk = dsᵀ·(scale · q)`. Dropout, the soft cap and the biases come in between.
    fn backward_task(
        &self,
        cpu: Cpu,
        (sequence, head): (usize, usize),
        dy: HeadRows,
        to: &[Shared<T>; 3],
        sums: &SharedGradients<T>,
    ) {
        let [query, key, value] = self.of.operands();
        let group = self.group();
        let queries = self.stacked(query, sequence, head * group, group, self.scale());
        let dy = self.stacked(dy, sequence, head * group, group, T::of(1.0));
        let dy = rows(&dy, value.head_dim);
        let (p, mut sinks) = self.probabilities(cpu, sequence, head, &queries);
        let mut dv = Buffer::new(value.seq * value.head_dim);
        match self.of.dropped {
            None => multiply(cpu, rows(&p, key.seq).transposed(), dy, &mut dv),
            Some(_) => {
                let mut dropped = Buffer::copied(&p);
                self.drop(sequence, head, &mut dropped);
                multiply(cpu, rows(&dropped, key.seq).transposed(), dy, &mut dv);
            }
        }
        let mut dp = Buffer::new(p.len());
        let values = value.head(sequence, head);
        multiply(cpu, dy, values.transposed(), &mut dp);
        self.drop(sequence, head, &mut dp);
        let mut ds = Buffer::new(p.len());
        backward_here(cpu.isa, &p, &dp, &mut ds, key.seq, sinks.as_deref_mut());
        drop((p, dp));
        self.add_to(sums, (sequence, head), &ds, sinks.as_deref());
        if let Some(cap) = self.of.soft_cap {
            // d tanh = 1 - tanh², from recomputed products.
            let mut products = Buffer::new(ds.len());
            let keys = key.head(sequence, head);
            let queries = rows(&queries, query.head_dim);
            multiply(cpu, queries, keys.transposed(), &mut products);
            capped(cpu, cap, &mut products);
            for (ds, capped) in ds.iter_mut().zip(products.iter()) {
                let tanh = *capped / T::of(cap);
                *ds = *ds * (T::of(1.0) - tanh * tanh);
            }
        }
        let ds = rows(&ds, key.seq);
        let mut dq = Buffer::new(group * query.seq * query.head_dim);
        multiply(cpu, ds, key.head(sequence, head), &mut dq);
        dq.iter_mut().for_each(|dq| *dq = *dq * self.scale());
        let mut dk = Buffer::new(key.seq * key.head_dim);
        let queries = rows(&queries, query.head_dim);
        multiply(cpu, ds.transposed(), queries, &mut dk);
        let [to_query, to_key, to_value] = to;
        for (gradient, of, first, to) in [
            (&dq, query, head * group, to_query),
            (&dk, key, head, to_key),
            (&dv, value, head, to_value),
        ] {
            // SAFETY: no two tasks share a head in a sequence.
            unsafe { write_heads(gradient, of, sequence, first, to) };
        }
    }

    fn scale(&self) -> T {
        T::of(self.of.scale)
    }

    /// Returns some heads in a sequence times a factor, stacked: `[n · seq, head_dim]`.
    fn stacked(
        &self,
        heads: HeadRows,
        sequence: usize,
        first: usize,
        n: usize,
        factor: T,
    ) -> Vec<T> {
        let data = T::of_slice(heads.data);
        let mut all = Vec::with_capacity(n * heads.seq * heads.head_dim);
        for head in first..first + n {
            let column = heads.offset + head * heads.head_dim;
            for position in 0..heads.seq {
                let start = (sequence * heads.seq + position) * heads.row_stride + column;
                let row = &data[start..][..heads.head_dim];
                all.extend(row.iter().map(|&x| x * factor));
            }
        }
        all
    }

    /// Returns a task's probabilities before dropout, `[group · queries, keys]`, and its sinks' probabilities.
    fn probabilities(
        &self,
        cpu: Cpu,
        sequence: usize,
        head: usize,
        queries: &[T],
    ) -> (Buffer<T>, Option<Vec<T>>) {
        let (seq, keys) = (self.of.query.seq, self.of.key.seq);
        let queries = rows(queries, self.of.query.head_dim);
        let mut scores = Buffer::new(queries.rows() * keys);
        let key = self.of.key.head(sequence, head);
        multiply(cpu, queries, key.transposed(), &mut scores);
        if let Some(cap) = self.of.soft_cap {
            capped(cpu, cap, &mut scores);
        }
        for &(bias, layout) in &self.biases {
            for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
                let start = self.at(layout, sequence, head, row);
                for (key, score) in scores.iter_mut().enumerate() {
                    *score += bias[start + key * layout.key_stride()];
                }
            }
        }
        let keep = self.of.keep.map(|keep| &keep[sequence * keys..][..keys]);
        let group = self.group();
        let mut sinks = self.of.sinks.map(|sinks| {
            let group_sinks = &T::of_slice(sinks)[head * group..][..group];
            let row_sinks = group_sinks.iter().flat_map(|&sink| repeat_n(sink, seq));
            row_sinks.collect::<Vec<T>>()
        });
        let mut probabilities = Buffer::new(scores.len());
        let (isa, row_sinks) = (cpu.isa, sinks.as_deref_mut());
        forward_here(isa, &scores, &mut probabilities, keys, row_sinks, |row| {
            VisibleElements {
                range: (self.of.reach)(row % seq),
                keep,
            }
        });
        (probabilities, sinks)
    }

    /// Returns the index of a bias's element for a task's row at key 0.
    fn at(&self, layout: BiasLayout, sequence: usize, head: usize, row: usize) -> usize {
        let seq = self.of.query.seq;
        let head = head * self.group() + row / seq;
        layout.index([sequence, head, row % seq, 0])
    }

    /// Applies dropout to a task's probabilities, or to their gradients.
    fn drop(&self, sequence: usize, head: usize, numbers: &mut [T]) {
        let Some(Dropped { keep, divisor }) = self.of.dropped else {
            return;
        };
        let divisor = T::of(divisor);
        let first = (sequence * self.of.key.heads + head) * numbers.len();
        for (x, &keep) in numbers.iter_mut().zip(&keep[first..]) {
            *x = if keep == 0 { T::ZERO } else { *x / divisor };
        }
    }
}

/// Writes heads in one sequence, starting with head `first`, from `[head][position][dimension]` to contiguous rows.
///
/// # Safety
/// No other borrow of these heads in this sequence is in use.
unsafe fn write_heads<T: Copy>(
    heads: &[T],
    of: HeadRows,
    sequence: usize,
    first: usize,
    to: &Shared<T>,
) {
    for (i, head) in heads.chunks_exact(of.seq * of.head_dim).enumerate() {
        for (position, numbers) in head.chunks_exact(of.head_dim).enumerate() {
            let row = sequence * of.seq + position;
            let start = (row * of.heads + first + i) * of.head_dim;
            // SAFETY: the caller's promise.
            unsafe { to.range(start..start + of.head_dim) }.copy_from_slice(numbers);
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

/// Returns contiguous rows as a matrix `[data.len() / width, width]`.
pub(super) fn rows<T: Copy>(data: &[T], width: usize) -> View<'_, T> {
    View::row_major(data, data.len() / width.max(1), width)
}

/// Computes `y = a·b` on the calling thread, because tasks already run in parallel.
pub(super) fn multiply<T: Plain>(cpu: Cpu, a: View<T>, b: View<T>, y: &mut [T]) {
    multiply_views(cpu.alone(), a, b, &Epilogue::NONE, y);
}

#[cfg(test)]
mod tests;
