//! A norm's parameters as the kernels take them.

use candle_core::Result;

use super::{elements, linear::plain};
use crate::{cpu::source::RowNorm, layers::Norm, ops};

/// Of a layer's parameters.
pub(super) fn row_norm(norm: &Norm) -> Result<RowNorm> {
    let weight = elements(&plain(norm.weight())?)?;
    let bias = norm.bias().map(elements).transpose()?;
    let kernel = ops::norm_kernel(norm.config());
    Ok(RowNorm::new(kernel, &weight, bias.as_deref()))
}
