//! The forward pass in f32 without dropout, as attention without a backward pass computes it.

use super::Differentiable;
use crate::attention::attend::attend_with_normalizers;
use crate::attention::{Bias, HeadRows, Heads, KeyValue, OperandFormat, Scoring, Sequences, Shape};
use crate::cpu::Cpu;
use crate::vectors::Stored;

impl Differentiable<'_> {
    /// Returns whether [`Self::attend`] computes this call.
    pub(super) fn is_undropped(&self) -> bool {
        self.dropped.is_none() && self.key.head_dim == self.value.head_dim
    }

    /// Writes the result and the rows' normalizers, if there are any.
    ///
    /// # Panics
    /// If lengths or types do not match.
    pub(super) fn attend(&self, cpu: Cpu, y: &mut [f32], normalizers: &mut [f32]) {
        let sequences = |seq| Sequences::Equal {
            batch: self.batch,
            seq,
        };
        let shape = Shape {
            queries: sequences(self.query.seq),
            n_heads: self.query.heads,
            n_kv_heads: self.key.heads,
            head_dim: self.key.head_dim,
        };
        let biases = self.biases.iter().map(|bias| Bias {
            data: f32::of_slice(bias.data),
            layout: bias.layout,
        });
        let scoring = Scoring {
            scale: self.scale as f32,
            soft_cap: self.soft_cap.map(|cap| cap as f32),
            relative: self.relative,
            biases: &biases.collect::<Vec<_>>(),
            sinks: self.sinks.map(f32::of_slice),
            keep: self.keep,
            reach: &|_, query| (self.reach)(query),
            origins: None,
        };
        let key_value = KeyValue::Projected {
            keys: sequences(self.key.seq),
            key: heads(self.key),
            value: heads(self.value),
        };
        assert_eq!(normalizers.len(), self.n_normalizers());
        attend_with_normalizers(
            cpu,
            OperandFormat::F32,
            (&shape, &scoring),
            heads(self.query),
            key_value,
            y,
            (!normalizers.is_empty()).then_some(normalizers),
        );
    }
}

/// Returns heads in f32.
fn heads(of: HeadRows) -> Heads {
    Heads {
        data: f32::of_slice(of.data),
        row_stride: of.row_stride,
        offset: of.offset,
    }
}
