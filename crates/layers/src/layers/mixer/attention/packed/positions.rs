//! Disentangled attention terms for packed attention.

use std::sync::Arc;

use candle_blocks_kernels::Slice;
use candle_blocks_kernels::attention::{ContentOf, HeadRows, Heads, RelativeScores, RelativeTerm};
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

    pub fn n_terms(&self) -> usize {
        self.terms.len()
    }

    /// Runs `work` with the terms. `queries` and `keys` have `rows` rows.
    pub fn with<R>(
        &self,
        distances: &DistanceRows,
        (queries, keys, rows): (Heads, Heads, usize),
        attention: &AttentionConfig,
        work: impl FnOnce(RelativeScores) -> R,
    ) -> R {
        let columns = attention.query_width();
        let heads_of = |data, seq, row_stride, offset| HeadRows {
            data: Slice::F32(data),
            seq,
            heads: attention.n_heads,
            head_dim: attention.head_dim,
            row_stride,
            offset,
        };
        let terms = self.terms.iter().map(|(of, table)| {
            let content = match of {
                ContentOf::Queries => queries,
                ContentOf::Keys => keys,
            };
            let table = &table[distances.range.start * columns..distances.range.end * columns];
            RelativeTerm {
                content: heads_of(content.data, rows, content.row_stride, content.offset),
                of: *of,
                table: heads_of(table, distances.range.len(), columns, 0),
            }
        });
        work(RelativeScores {
            terms: &terms.collect::<Vec<_>>(),
            rows: &distances.rows,
            scale: attention.scale,
        })
    }
}
