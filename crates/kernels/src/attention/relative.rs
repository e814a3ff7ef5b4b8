//! The position terms of disentangled attention (DeBERTa, He et al. 2020, <https://arxiv.org/abs/2006.03654>), in f32 or f64, with a
//! backward pass.
//!
//! A task computes one head in one sequence. It multiplies the contents of all its positions by the table of relative
//! embeddings, `[positions, table rows]`, and each score reads its element of that. Memory is linear in the sequence.

use std::{iter::zip, ops::Range};

use super::head_rows::{HeadRows, multiply, rows};
use crate::Cpu;
use crate::memory::{Buffer, Recycled};
use crate::products::Plain;
use crate::threads::Shared;
use crate::vectors::Stored;

/// The content that is multiplied by relative position embeddings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentOf {
    /// The query's content: content to position.
    Queries,
    /// The key's content: position to content.
    Keys,
}

/// A term that is added to the scores of each head: `scale · content · table[rows[query - key]]`.
#[derive(Clone, Copy, Debug)]
pub struct RelativeTerm<'a> {
    /// The content of all sequences: query or key heads.
    pub content: HeadRows<'a>,
    /// Selects queries or keys as `content`.
    pub of: ContentOf,
    /// The position table's heads. A row serves one or several distances.
    pub table: HeadRows<'a>,
}

/// The terms for positions that attend to each other.
#[derive(Clone, Copy, Debug)]
pub struct RelativeScores<'a> {
    /// The terms, added in this order.
    pub terms: &'a [RelativeTerm<'a>],
    /// The table row for each distance `query - key`, from `1 - n` to `n - 1`, where no sequence has more than `n` positions.
    pub rows: &'a [u32],
    /// A factor on the products.
    pub scale: f64,
}

impl<'a> RelativeScores<'a> {
    /// Checks that sequences of `seq` positions in `n_rows` rows with `heads` heads have their terms.
    ///
    /// # Panics
    /// If lengths do not match.
    pub(super) fn check(&self, seq: usize, n_rows: usize, heads: usize) {
        assert!(self.rows.len() + 1 >= 2 * seq, "distances");
        let last = self.rows.iter().max().map_or(0, |&row| row as usize + 1);
        for RelativeTerm { content, table, .. } in self.terms {
            assert_eq!((content.heads, content.head_dim), (heads, table.head_dim));
            assert_eq!(table.heads, heads);
            assert!(last <= table.seq, "table rows");
            assert!(n_rows <= content.seq, "content rows");
        }
    }

    /// Returns the number of products for a head in a sequence of `seq` positions.
    pub(super) fn n_products(&self, seq: usize) -> usize {
        self.terms.iter().map(|term| seq * term.table.seq).sum()
    }

    /// Computes the products for a head in the sequence with the rows `lines`.
    pub(super) fn of_head<T: Plain + Recycled + Stored>(
        &self,
        cpu: Cpu,
        lines: Range<usize>,
        head: usize,
    ) -> RelativeProducts<'a, T> {
        let product = |RelativeTerm { content, table, .. }: &RelativeTerm| {
            let mut products = Buffer::new(lines.len() * table.seq);
            let content = content.positions((0, head), lines.clone());
            let table = table.head::<T>(0, head);
            multiply(cpu, content, table.transposed(), &mut products);
            products
        };
        RelativeProducts {
            of: *self,
            head,
            products: self.terms.iter().map(product).collect(),
            lines,
        }
    }
}

/// The products of a head's contents and table rows in one sequence.
pub(super) struct RelativeProducts<'a, T: Recycled> {
    of: RelativeScores<'a>,
    lines: Range<usize>,
    head: usize,
    /// For each term, `[positions, table rows]`.
    products: Vec<Buffer<T>>,
}

/// The destinations of a term's gradients, in contiguous rows with adjacent heads.
pub(super) struct TermGradients<'a, T> {
    pub content: Shared<'a, T>,
    /// Must hold zeros.
    pub table: Shared<'a, T>,
}

impl<T: Plain + Recycled + Stored> RelativeProducts<'_, T> {
    /// Adds all terms to a query's scores for consecutive keys from `key` on.
    #[inline(always)]
    pub fn add_to(&self, query: usize, key: usize, scores: &mut [T]) {
        let scale = T::of(self.of.scale);
        for (term, products) in zip(self.of.terms, &self.products) {
            let places = self.places(term, query, key, scores.len());
            for (score, place) in zip(scores.iter_mut(), places) {
                *score += scale * products[place];
            }
        }
    }

    /// Returns zeros for the products' gradients.
    pub fn zeros(&self) -> Vec<Buffer<T>> {
        let zeros = |products: &Buffer<T>| {
            let mut zeros = Buffer::new(products.len());
            zeros.fill(T::ZERO);
            zeros
        };
        self.products.iter().map(zeros).collect()
    }

    /// Adds the gradients of a query's scores for consecutive keys to those of the products.
    pub fn add_gradients(&self, to: &mut [Buffer<T>], query: usize, key: usize, dscores: &[T]) {
        let scale = T::of(self.of.scale);
        for (term, sums) in zip(self.of.terms, to) {
            let places = self.places(term, query, key, dscores.len());
            for (&dscore, place) in zip(dscores, places) {
                sums[place] += scale * dscore;
            }
        }
    }

    /// Writes the contents' gradients and adds to the tables', given those of the products.
    ///
    /// # Safety
    /// No other borrow of this sequence's rows and this head's columns is in use.
    pub unsafe fn backward(&self, cpu: Cpu, dproducts: &[Buffer<T>], to: &[TermGradients<T>]) {
        for ((term, dproducts), to) in zip(zip(self.of.terms, dproducts), to) {
            let RelativeTerm { content, table, .. } = term;
            let (width, head_dim) = (table.heads * table.head_dim, table.head_dim);
            let dproducts = rows(dproducts, table.seq);
            let first = self.head * head_dim;
            let mut dcontent = Buffer::new(self.lines.len() * head_dim);
            multiply(cpu, dproducts, table.head::<T>(0, self.head), &mut dcontent);
            for (line, from) in self.lines.clone().zip(dcontent.chunks_exact(head_dim)) {
                let start = line * width + first;
                // SAFETY: the caller's promise.
                unsafe { to.content.range(start..start + head_dim) }.copy_from_slice(from);
            }
            let mut dtable = Buffer::new(table.seq * head_dim);
            let content = content.positions((0, self.head), self.lines.clone());
            multiply(cpu, dproducts.transposed(), content, &mut dtable);
            for (row, from) in dtable.chunks_exact(head_dim).enumerate() {
                let start = row * width + first;
                // SAFETY: the caller's promise.
                let to = unsafe { to.table.range(start..start + head_dim) };
                zip(to, from).for_each(|(sum, &x)| *sum += x);
            }
        }
    }

    /// Returns the places of a term's products for a query and `n` consecutive keys.
    #[inline(always)]
    fn places(
        &self,
        term: &RelativeTerm,
        query: usize,
        key: usize,
        n: usize,
    ) -> impl Iterator<Item = usize> + use<'_, T> {
        let (of, width) = (term.of, term.table.seq);
        // Distance 0 is in the middle.
        let end = self.of.rows.len() / 2 + 1 + query - key;
        let rows = self.of.rows[end - n..end].iter().rev();
        rows.enumerate().map(move |(i, &row)| {
            let line = match of {
                ContentOf::Queries => query,
                ContentOf::Keys => key + i,
            };
            line * width + row as usize
        })
    }
}

#[cfg(test)]
mod tests;
