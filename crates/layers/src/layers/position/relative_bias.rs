//! A learned relative position bias (T5, MPNet).

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::config::{RelativeBiasConfig, Visibility};
use crate::layers::ParameterSource;
use crate::ops::{BiasTensor, Constants, uploaded, wide};

/// A learned relative position bias. It adds `table[bucket(key - query), head]` to the scores, like transformers'
/// `T5Attention.compute_bias` and `MPNetEncoder.compute_position_bias`.
#[derive(Clone, Debug)]
pub struct RelativeBias {
    table: Tensor, // [n_buckets, n_heads]
    config: RelativeBiasConfig,
    visibility: Visibility,
}

impl RelativeBias {
    /// Creates the layer with `weight` `[n_buckets, n_heads]` from `vb`. With causal attention, all buckets are for
    /// earlier positions.
    ///
    /// # Errors
    /// If the table is missing or has another shape, or the buckets do not reach `max_distance`: half of the buckets
    /// in a direction hold one distance each, and `max_distance` must lie beyond them.
    pub fn new<'p>(
        config: &RelativeBiasConfig,
        visibility: Visibility,
        vb: impl Into<ParameterSource<'p>>,
    ) -> Result<Self> {
        let vb = vb.into();
        config.validate_buckets(visibility)?;
        let init = candle_nn::Init::Randn {
            mean: 0.0,
            stdev: 1.0,
        };
        let table = vb.get_with_hints((config.n_buckets, config.n_heads), "weight", init)?;
        Ok(Self {
            table,
            config: *config,
            visibility,
        })
    }

    /// Returns the table, `[n_buckets, n_heads]`.
    pub fn table(&self) -> &Tensor {
        &self.table
    }

    /// Returns the same layer with another table of the same shape.
    pub(crate) fn with_table(&self, table: Tensor) -> Self {
        Self {
            table,
            ..self.clone()
        }
    }

    /// Returns the bias `[1, n_heads, queries, keys]` for the last `queries` of `keys` positions.
    ///
    /// # Errors
    /// If there are more queries than keys.
    pub fn bias(&self, queries: usize, keys: usize) -> Result<Tensor> {
        self.by_distance(queries, keys, &Constants::default())?
            .of_scores(queries, keys)
    }

    /// Returns the bias by distance, with constants that earlier calls left on the table's device. It is in f32 for
    /// half types.
    pub(crate) fn by_distance(
        &self,
        queries: usize,
        keys: usize,
        constants: &Constants,
    ) -> Result<BiasTensor> {
        if queries > keys {
            bail!("relative bias: {queries} queries, expected at most {keys}, the number of keys");
        }
        let name = format!("{queries} {keys} {:?} {:?}", self.config, self.visibility);
        let device = self.table.device();
        let rows = constants.table(name, (DType::U32, device), || {
            // From the first key and the last query on.
            let relative = 1 - keys as i64..queries as i64;
            let bucket = |relative| self.config.bucket(relative, self.visibility) as u32;
            let rows: Vec<u32> = relative.map(bucket).collect();
            uploaded(&Tensor::new(rows, &Device::Cpu)?, DType::U32, device)
        })?;
        let table = self.table.to_dtype(wide(self.table.dtype()))?;
        let bias = table.index_select(&rows, 0)?.t()?.contiguous()?;
        Ok(BiasTensor::by_distance(bias))
    }
}
