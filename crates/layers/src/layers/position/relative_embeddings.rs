//! The table by distance that the blocks of a stack share: relative embeddings (DeBERTa), or a bias that queries gate (WavLM).

use std::{ops::Range, sync::Arc};

use candle_core::{Module, Result, Tensor};
use candle_nn::Init;

use crate::config::{Distances, RelativeEmbeddingsConfig, getters};
use crate::layers::{Norm, ParameterSource};

/// A table with a row for each relative distance or range of distances, normalized if a norm is configured: transformers'
/// `DebertaV2Encoder.get_rel_embedding`, and `rel_attn_embed` in `WavLMAttention`.
#[derive(Clone, Debug)]
pub struct RelativeEmbeddings {
    table: Tensor, // [n_rows, width]
    norm: Option<Norm>,
}

impl RelativeEmbeddings {
    /// Creates the layer with `relative_embeddings` `[n_rows, width]` and, if configured, `relative_embeddings_norm` from `vb`. The
    /// width is `d_model` for disentangled attention, and the number of heads for a gated bias.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &RelativeEmbeddingsConfig,
        width: usize,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        let init = Init::Randn {
            mean: 0.0,
            stdev: 0.02,
        };
        let table = vb.pp("relative_embeddings");
        let table = table.get_with_hints((config.n_rows, width), "weight", init)?;
        let norm = |norm| Norm::new(norm, vb.pp("relative_embeddings_norm"));
        Ok(Self {
            table,
            norm: config.norm.as_ref().map(norm).transpose()?,
        })
    }

    getters! {
        /// The table, `[n_rows, width]`.
        table(&self) -> &Tensor => &self.table;
        /// The norm of the rows, if any.
        norm(&self) -> Option<&Norm> => self.norm.as_ref();
    }

    /// Returns the normalized rows, `[n_rows, width]`.
    pub fn rows(&self) -> Result<Tensor> {
        match &self.norm {
            Some(norm) => norm.forward(&self.table),
            None => Ok(self.table.clone()),
        }
    }
}

/// The rows of relative embeddings for the distances within a sequence.
#[derive(Clone, Debug)]
pub(crate) struct DistanceRows {
    /// The range of table rows in use.
    pub range: Range<usize>,
    /// Within the range, the row for each distance `query - key` from `1 - seq` to `seq - 1`.
    pub rows: Arc<[u32]>,
}

impl DistanceRows {
    /// Returns the rows for sequences with `seq` positions. The range holds only the rows that they read.
    pub fn new(of: &Distances, seq: usize) -> Self {
        let rows: Vec<usize> = distances(seq).map(|distance| of.row(distance)).collect();
        let first = rows.iter().copied().min().unwrap_or(0);
        let last = rows.iter().copied().max().unwrap_or(0);
        Self::within(first..last + 1, &rows)
    }

    /// Returns the rows like [`Self::new`], with all rows of the table in the range.
    pub fn of_all(of: &Distances, seq: usize) -> Self {
        let rows: Vec<usize> = distances(seq).map(|distance| of.row(distance)).collect();
        Self::within(0..of.n_rows(), &rows)
    }

    fn within(range: Range<usize>, rows: &[usize]) -> Self {
        let rows = rows.iter().map(|row| (row - range.start) as u32);
        Self {
            rows: rows.collect(),
            range,
        }
    }
}

/// Returns the distances within a sequence.
fn distances(seq: usize) -> Range<i64> {
    1 - seq as i64..seq as i64
}
