//! Disentangled attention terms for packed attention.

use std::sync::Arc;

use candle_blocks_kernels::attention::{
    Bias, BiasLayout, ContentOf, HeadRows, RelativeScores, Sequences,
};
use candle_blocks_kernels::{Cpu, Slice, SliceMut};
use candle_core::{Result, bail};

use super::Packing;
use crate::config::{AttentionConfig, DisentangledConfig, Position};
use crate::layers::packed::elements;
use crate::layers::{Attention, DistanceRows};

/// The relative embeddings projected to position keys and queries, `[2 · span, n_heads · head_dim]`. In evaluation
/// they are constants.
#[derive(Clone)]
pub(super) struct PackedPositions {
    pub config: DisentangledConfig,
    terms: Vec<(ContentOf, Arc<[f32]>)>,
}

impl PackedPositions {
    /// # Errors
    /// If the attention is disentangled, and is packed without its stack's relative embeddings.
    pub fn new(packing: &Packing, attention: &Attention) -> Result<Option<Self>> {
        let Position::Disentangled(config) = &attention.config().position else {
            return Ok(None);
        };
        let Some(table) = &packing.relative else {
            bail!(
                "pack: disentangled attention reads the relative embeddings of its stack; pack the stack"
            );
        };
        let [keys, queries] = attention.positions(table)?;
        let both = [(ContentOf::Queries, keys), (ContentOf::Keys, queries)];
        let terms = both
            .into_iter()
            .filter_map(|(of, table)| Some((of, table?)));
        let terms = terms.map(|(of, table)| Ok((of, elements(&table)?.into())));
        Ok(Some(Self {
            config: *config,
            terms: terms.collect::<Result<_>>()?,
        }))
    }

    /// Writes the disentangled attention terms for the scores to `[sequences, n_heads, longest, longest]`. Queries
    /// and keys lie side by side in `projected`, in rows with `width` columns.
    pub fn write<'s>(
        &self,
        cpu: Cpu,
        distances: &DistanceRows,
        (projected, width): (&[f32], usize),
        sequences: Sequences,
        attention: &AttentionConfig,
        scores: &'s mut [f32],
    ) -> Bias<'s> {
        let (heads, longest) = (attention.n_heads, sequences.longest());
        scores.fill(0.0);
        let per_sequence = (heads * longest * longest).max(1);
        for (sequence, scores) in scores.chunks_exact_mut(per_sequence).enumerate() {
            let lines = sequences.rows(sequence);
            let (seq, most) = (lines.len(), distances.rows.len().div_ceil(2));
            if seq == 0 {
                continue;
            }
            let heads_of = |data, seq, row_stride, offset| HeadRows {
                data: Slice::F32(data),
                seq,
                heads,
                head_dim: attention.head_dim,
                row_stride,
                offset,
            };
            for (of, table) in &self.terms {
                let offset = match of {
                    ContentOf::Queries => 0,
                    ContentOf::Keys => attention.query_width(),
                };
                let columns = attention.query_width();
                let table = &table[distances.range.start * columns..distances.range.end * columns];
                let scored = RelativeScores {
                    batch: 1,
                    content: heads_of(&projected[lines.start * width..], seq, width, offset),
                    of: *of,
                    table: heads_of(table, distances.range.len(), columns, 0),
                    rows: &distances.rows[most - seq..most + seq - 1],
                    longest,
                    scale: attention.scale,
                };
                scored.add_to(cpu, SliceMut::F32(scores));
            }
        }
        let strides = [heads * longest * longest, longest * longest, longest, 1];
        Bias {
            data: scores,
            layout: BiasLayout::strided(strides),
        }
    }
}
