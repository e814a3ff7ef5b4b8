//! A norm's parameters in the form that the kernels read.

use candle_blocks_kernels::{Isa, rows::RowNorm};
use candle_core::Result;

use crate::layers::linear::packed::plain;
use crate::layers::packed::elements;
use crate::layers::{Norm, QueryKeyNorms};
use crate::ops;

/// Packs a norm.
///
/// # Errors
/// If the norm is not on the CPU, or is f64.
pub(in crate::layers) fn row_norm(norm: &Norm) -> Result<RowNorm> {
    let weight = elements(&plain(norm.weight())?)?;
    let bias = norm.bias().map(elements).transpose()?;
    let kernel = ops::norm_kernel(norm.config());
    Ok(RowNorm::new(kernel, &weight, bias.as_deref()))
}

/// Norms for the heads of queries and keys: one for all spans in a row, or one each.
#[derive(Clone)]
pub(in crate::layers) struct SpanNorms {
    query: Vec<RowNorm>,
    key: Vec<RowNorm>,
}

impl SpanNorms {
    /// Packs the query norms and the key norms.
    pub fn new(norms: &QueryKeyNorms) -> Result<Self> {
        let packed = |norms: &[Norm]| norms.iter().map(row_norm).collect::<Result<_>>();
        Ok(Self {
            query: packed(&norms.query)?,
            key: packed(&norms.key)?,
        })
    }

    /// Normalizes the queries of a row.
    pub fn query(&self, isa: Isa, row: &mut [f32]) {
        normalize(isa, &self.query, row);
    }

    /// Normalizes the keys of a row.
    pub fn key(&self, isa: Isa, row: &mut [f32]) {
        normalize(isa, &self.key, row);
    }
}

fn normalize(isa: Isa, norms: &[RowNorm], row: &mut [f32]) {
    // Keys of an earlier layer are already normalized.
    let Some(width) = norms.first().map(RowNorm::width) else {
        return;
    };
    let spans = row.chunks_exact_mut(width);
    for (span, norm) in spans.zip(norms.iter().cycle()) {
        norm.row_in_place(isa, span);
    }
}
