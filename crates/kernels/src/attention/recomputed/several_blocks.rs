//! The forward pass in f32 of queries whose keys end beyond the first block, as attention without a backward pass
//! computes it. The others divide probabilities before the product with the values, as PyTorch does without fused
//! kernels, so that both round alike.

use std::ops::Range;

use super::{Differentiable, tile::BLOCK};
use crate::attention::attend::attend_with_normalizers;
use crate::attention::mask::without_hidden_ends;
use crate::attention::{
    Bias, HeadRows, Heads, KeyValue, OperandFormat, Origin, Scoring, Sequences, Shape,
};
use crate::cpu::Cpu;
use crate::vectors::Stored;

/// Consecutive queries in a sequence.
pub(super) type Queries = (usize, Range<usize>);

impl Differentiable<'_> {
    /// Returns the queries with keys in several blocks, if [`Self::attend`] computes them, and the others.
    pub(super) fn by_blocks(&self) -> [Vec<Queries>; 2] {
        let (seq, keys) = (self.query.seq, self.key.seq);
        let attends = self.dropped.is_none()
            && self.relative.is_none()
            && self.key.head_dim == self.value.head_dim
            && keys > BLOCK;
        let mut of = [Vec::new(), Vec::new()];
        for sequence in 0..self.batch {
            if !attends {
                of[1].push((sequence, 0..seq));
                continue;
            }
            let shown = match self.keep {
                Some(keep) => without_hidden_ends(&keep[sequence * keys..][..keys], 0..keys),
                None => 0..keys,
            };
            // A query's own keys decide, so that its bits do not depend on the others.
            let is_near = |query: usize| (self.reach)(query).end.min(shown.end) <= BLOCK;
            let mut start = 0;
            while start < seq {
                let near = is_near(start);
                let end = (start..seq).find(|&query| is_near(query) != near);
                let end = end.unwrap_or(seq);
                of[usize::from(near)].push((sequence, start..end));
                start = end;
            }
        }
        of
    }

    /// Writes the results of some queries, and their normalizers, if there are any.
    ///
    /// # Panics
    /// If lengths or types do not match.
    pub(super) fn attend(
        &self,
        cpu: Cpu,
        (sequence, queries): &Queries,
        y: &mut [f32],
        normalizers: &mut [f32],
    ) {
        let of_one = |seq| Sequences::Equal { batch: 1, seq };
        let shape = Shape {
            queries: of_one(queries.len()),
            n_heads: self.query.heads,
            n_kv_heads: self.key.heads,
            head_dim: self.key.head_dim,
        };
        let biases = self.biases.iter().map(|bias| {
            let all = Bias {
                data: f32::of_slice(bias.data),
                layout: bias.layout,
            };
            all.from_sequence(*sequence)
        });
        let keys = self.key.seq;
        let scoring = Scoring {
            scale: self.scale as f32,
            soft_cap: self.soft_cap.map(|cap| cap as f32),
            relative: None,
            biases: &biases.collect::<Vec<_>>(),
            sinks: self.sinks.map(f32::of_slice),
            keep: self.keep.map(|keep| &keep[sequence * keys..][..keys]),
            reach: &|_, query| (self.reach)(queries.start + query),
            origins: Some(&[Origin {
                query: queries.start,
                key: 0,
            }]),
        };
        let first_key = sequence * keys;
        let key_value = KeyValue::Projected {
            keys: of_one(keys),
            key: heads(self.key, first_key),
            value: heads(self.value, first_key),
        };
        let first = sequence * self.query.seq + queries.start;
        let rows = |width: usize| first * width..(first + queries.len()) * width;
        let n_heads = self.query.heads;
        attend_with_normalizers(
            cpu,
            OperandFormat::F32,
            (&shape, &scoring),
            heads(self.query, first),
            key_value,
            &mut y[rows(n_heads * self.value.head_dim)],
            (!normalizers.is_empty()).then(|| &mut normalizers[rows(2 * n_heads)]),
        );
    }
}

/// Returns heads in f32 from a row on.
fn heads(of: HeadRows, row: usize) -> Heads {
    Heads {
        data: &f32::of_slice(of.data)[row * of.row_stride..],
        row_stride: of.row_stride,
        offset: of.offset,
    }
}
