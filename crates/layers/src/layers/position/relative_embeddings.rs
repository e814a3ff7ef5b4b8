//! The relative embeddings that the blocks of disentangled attention share (DeBERTa).

use std::{ops::Range, sync::Arc};

use candle_core::{Module, Result, Tensor};
use candle_nn::Init;

use crate::config::{DisentangledConfig, RelativeEmbeddingsConfig, getters};
use crate::layers::{Norm, ParameterSource};

/// A table with an embedding for each relative distance or range of distances, normalized if a norm is configured:
/// transformers' `DebertaV2Encoder.get_rel_embedding`.
#[derive(Clone, Debug)]
pub struct RelativeEmbeddings {
    table: Tensor, // [n_rows, d_model]
    norm: Option<Norm>,
}

impl RelativeEmbeddings {
    /// Creates the layer with `relative_embeddings` `[n_rows, d_model]` and, if configured,
    /// `relative_embeddings_norm` from `vb`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new<'p>(
        config: &RelativeEmbeddingsConfig,
        d_model: usize,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        let init = Init::Randn {
            mean: 0.0,
            stdev: 0.02,
        };
        let table = vb.pp("relative_embeddings");
        let table = table.get_with_hints((config.n_rows, d_model), "weight", init)?;
        let norm = |norm| Norm::new(norm, vb.pp("relative_embeddings_norm"));
        Ok(Self {
            table,
            norm: config.norm.as_ref().map(norm).transpose()?,
        })
    }

    getters! {
        /// The table, `[n_rows, d_model]`.
        table(&self) -> &Tensor => &self.table;
        /// The norm of the rows, if any.
        norm(&self) -> Option<&Norm> => self.norm.as_ref();
    }

    /// Returns the normalized rows, `[n_rows, d_model]`.
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
    pub fn new(config: &DisentangledConfig, seq: usize) -> Self {
        // A larger distance never has a higher row.
        let last = (seq as i64 - 1).max(0);
        Self::within(config.row(-last)..config.row(last) + 1, config, seq)
    }

    /// Returns the rows like [`Self::new`], with all rows of the table in the range.
    pub fn of_all(config: &DisentangledConfig, seq: usize) -> Self {
        Self::within(0..2 * config.span, config, seq)
    }

    fn within(range: Range<usize>, config: &DisentangledConfig, seq: usize) -> Self {
        let distances = 1 - seq as i64..seq as i64;
        let rows = distances.map(|distance| (config.row(distance) - range.start) as u32);
        Self {
            rows: rows.collect(),
            range,
        }
    }
}
