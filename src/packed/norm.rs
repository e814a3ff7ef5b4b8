//! A norm's parameters as the kernels take them.

use candle_core::Result;

use super::{elements, linear::plain};
use crate::{
    cpu::{isa::Isa, source::RowNorm},
    layers::{Norm, QueryKeyNorms},
    ops,
};

/// Of a layer's parameters.
pub(super) fn row_norm(norm: &Norm) -> Result<RowNorm> {
    let weight = elements(&plain(norm.weight())?)?;
    let bias = norm.bias().map(elements).transpose()?;
    let kernel = ops::norm_kernel(norm.config());
    Ok(RowNorm::new(kernel, &weight, bias.as_deref()))
}

/// Norms of the heads of queries and keys: one for all spans of a row, or one for each.
#[derive(Clone)]
pub(super) struct SpanNorms {
    query: Vec<RowNorm>,
    key: Vec<RowNorm>,
}

impl SpanNorms {
    pub fn new(norms: &QueryKeyNorms) -> Result<Self> {
        let pack = |norms: Vec<Norm>| norms.iter().map(row_norm).collect::<Result<Vec<_>>>();
        Ok(Self {
            query: pack(norms.query_spans()?)?,
            key: pack(norms.key_spans()?)?,
        })
    }

    /// Normalises the queries of a row.
    pub fn query(&self, isa: Isa, row: &mut [f32]) {
        normalise(isa, &self.query, row);
    }

    /// Normalises the keys of a row.
    pub fn key(&self, isa: Isa, row: &mut [f32]) {
        normalise(isa, &self.key, row);
    }
}

fn normalise(isa: Isa, norms: &[RowNorm], row: &mut [f32]) {
    let width = norms[0].width();
    let spans = row.chunks_exact_mut(width);
    for (span, norm) in spans.zip(norms.iter().cycle()) {
        norm.row_in_place(isa, span);
    }
}
