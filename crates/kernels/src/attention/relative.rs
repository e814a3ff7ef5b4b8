//! Position scores for disentangled attention (DeBERTa, He et al. 2020, <https://arxiv.org/abs/2006.03654>), in f32
//! or f64, with a backward pass.

use super::HeadRows;
use super::recomputed::{multiply, rows};
use crate::memory::{Buffer, Recycled};
use crate::products::Plain;
use crate::threads::for_chunks;
use crate::vectors::{Slice, SliceMut, Stored};
use crate::{Cpu, threads::parallel::threads_worth};

/// The content that is multiplied by relative position embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentOf {
    /// The query's content: content to position.
    Queries,
    /// The key's content: position to content.
    Keys,
}

/// The products `scale · content · table[rows[query - key]]` for every query and key in a sequence, per head.
#[derive(Clone, Copy, Debug)]
pub struct RelativeScores<'a> {
    /// Sequence count.
    pub batch: usize,
    /// The content: query or key heads.
    pub content: HeadRows<'a>,
    /// Selects queries or keys as `content`.
    pub of: ContentOf,
    /// The position table's heads. A row serves one or several distances.
    pub table: HeadRows<'a>,
    /// The table row for each distance `query - key`, from `1 - seq` to `seq - 1`.
    pub rows: &'a [u32],
    /// Rows and columns in the score matrix: `seq` or more.
    pub longest: usize,
    /// A factor on the products.
    pub scale: f64,
}

impl RelativeScores<'_> {
    /// Adds the products to `scores`, `[batch, heads, longest, longest]`.
    ///
    /// # Panics
    /// If lengths or types do not match, or the type is a half type.
    pub fn add_to(&self, cpu: Cpu, scores: SliceMut) {
        match scores {
            SliceMut::F32(scores) => self.add::<f32>(cpu, scores),
            SliceMut::F64(scores) => self.add::<f64>(cpu, scores),
            SliceMut::F16(_) | SliceMut::Bf16(_) => {
                panic!("relative scores do not support half types")
            }
        }
    }

    /// Computes the gradients for content and table, given the scores' gradient `[batch, heads, seq, seq]`. Both are
    /// written as contiguous rows.
    ///
    /// # Panics
    /// If lengths or types do not match, `longest` exceeds `seq`, or the type is a half type.
    pub fn backward(&self, cpu: Cpu, dscores: Slice, dcontent: SliceMut, dtable: SliceMut) {
        match dscores {
            Slice::F32(dscores) => self.gradients::<f32>(cpu, dscores, dcontent, dtable),
            Slice::F64(dscores) => self.gradients::<f64>(cpu, dscores, dcontent, dtable),
            Slice::F16(_) | Slice::Bf16(_) => panic!("relative scores do not support half types"),
        }
    }

    /// Checks all lengths, and returns the thread count.
    fn threads(&self, cpu: Cpu, n_scores: usize) -> usize {
        let (content, table) = (self.content, self.table);
        let (seq, heads) = (content.seq, content.heads);
        assert_eq!((heads, content.head_dim), (table.heads, table.head_dim));
        assert!(self.longest >= seq);
        let per_head = self.longest * self.longest;
        assert_eq!(n_scores, self.batch * heads * per_head, "scores");
        assert_eq!(self.rows.len(), (2 * seq).saturating_sub(1), "distances");
        let last = self.rows.iter().max();
        assert!(last.is_none_or(|&row| (row as usize) < table.seq));
        let work = self.batch * heads * seq * table.seq * content.head_dim;
        threads_worth(work, cpu.threads)
    }

    fn add<T: Plain + Recycled + Stored>(&self, cpu: Cpu, scores: &mut [T]) {
        let threads = self.threads(cpu, scores.len());
        let (seq, n_rows) = (self.content.seq, self.table.seq);
        let scale = T::of(self.scale);
        let per_head = self.longest * self.longest;
        for_chunks(threads, scores, per_head.max(1), |start, scores| {
            let task = start / per_head;
            let (sequence, head) = (task / self.content.heads, task % self.content.heads);
            let content = self.content.head::<T>(sequence, head);
            let table = self.table.head::<T>(0, head);
            let mut products = Buffer::new(seq * n_rows);
            multiply(cpu, content, table.transposed(), &mut products);
            let scores = scores.chunks_exact_mut(self.longest).take(seq);
            for (query, scores) in scores.enumerate() {
                for (key, (score, place)) in scores.iter_mut().zip(self.places(query)).enumerate() {
                    let row = self.line(query, key) * n_rows;
                    *score += scale * products[row + place];
                }
            }
        });
    }

    /// Returns the table rows for one query and each key.
    fn places(&self, query: usize) -> impl Iterator<Item = usize> {
        let rows = &self.rows[query..query + self.content.seq];
        rows.iter().rev().map(|&row| row as usize)
    }

    /// Returns the content row for a score.
    fn line(&self, query: usize, key: usize) -> usize {
        match self.of {
            ContentOf::Queries => query,
            ContentOf::Keys => key,
        }
    }

    /// Computes the gradients. A task is one head in all sequences. The table's gradient is summed in sequence
    /// order.
    fn gradients<T: Plain + Recycled + Stored>(
        &self,
        cpu: Cpu,
        dscores: &[T],
        dcontent: SliceMut,
        dtable: SliceMut,
    ) {
        let threads = self.threads(cpu, dscores.len());
        assert_eq!(self.longest, self.content.seq);
        let (dcontent, dtable) = (T::of_slice_mut(dcontent), T::of_slice_mut(dtable));
        let HeadRows {
            seq,
            heads,
            head_dim,
            ..
        } = self.content;
        let (n_rows, scale) = (self.table.seq, T::of(self.scale));
        let (n_content, n_table) = (self.batch * seq * head_dim, n_rows * head_dim);
        let per_head = n_content + n_table;
        let mut all = Buffer::<T>::new(heads * per_head);
        for_chunks(threads, &mut all, per_head.max(1), |start, sums| {
            let head = start / (n_content + n_table);
            let (to_content, to_table) = sums.split_at_mut(n_content);
            to_table.fill(T::ZERO);
            let mut products = Buffer::new(seq * n_rows);
            let mut part = Buffer::new(n_table);
            let table = self.table.head::<T>(0, head);
            for (sequence, to) in to_content.chunks_exact_mut(seq * head_dim).enumerate() {
                products.fill(T::ZERO);
                let scores = (sequence * heads + head) * seq * seq;
                let scores = dscores[scores..][..seq * seq].chunks_exact(seq);
                for (query, scores) in scores.enumerate() {
                    for (key, (&score, place)) in scores.iter().zip(self.places(query)).enumerate()
                    {
                        products[self.line(query, key) * n_rows + place] += scale * score;
                    }
                }
                let products = rows(&products, n_rows);
                multiply(cpu, products, table, to);
                let content = self.content.head::<T>(sequence, head);
                multiply(cpu, products.transposed(), content, &mut part);
                to_table
                    .iter_mut()
                    .zip(part.iter())
                    .for_each(|(sum, &x)| *sum += x);
            }
        });
        let width = heads * head_dim;
        for (head, sums) in all.chunks_exact(per_head.max(1)).enumerate() {
            let (content, table) = sums.split_at(n_content);
            for (to, from) in [(&mut *dcontent, content), (&mut *dtable, table)] {
                for (to, from) in to.chunks_exact_mut(width).zip(from.chunks_exact(head_dim)) {
                    to[head * head_dim..][..head_dim].copy_from_slice(from);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
