//! Weights that are packed from the quantized values of a file, without being dequantized.

use std::ops::Range;
use std::sync::Arc;

use candle_blocks_kernels::products::{PackedWeight, QuantizedFormat, QuantizedWeightRows};
use candle_core::Result;

use super::Packing;
use crate::layers::{Stored, StoredMatrix, Weight};
use crate::memory::check_packing;

/// A weight `[d_out, d_in]` of quantized values that can be packed as they are.
#[derive(Clone)]
pub(in crate::layers) struct Coded {
    pub dims: (usize, usize),
    matrix: Arc<dyn StoredMatrix>,
    format: QuantizedFormat,
    order: Option<Arc<[u32]>>,
}

impl Coded {
    /// Returns the quantized values of a weight, or `None` if the weight must be dequantized for packing.
    pub fn of(weight: &Weight) -> Option<Self> {
        let Weight::Stored(stored) = weight else {
            return None;
        };
        let matrix: &Arc<dyn StoredMatrix> = Stored::matrix(stored);
        let (format, order) = matrix.coding()?;
        Some(Self {
            dims: stored.dims(),
            matrix: matrix.clone(),
            format,
            order: order.cloned(),
        })
    }

    /// Returns true if two weights that share an input can be packed as one.
    pub fn is_like(&self, other: &Self) -> bool {
        (self.format, &self.order) == (other.format, &other.order)
    }
}

/// Packs weights that [are alike](Coded::is_like) as one, with their outputs side by side, or the gate and up weights
/// of a gated feed-forward.
pub(in crate::layers) fn pack_codes(
    packing: &Packing,
    weights: &[Coded],
    is_gated: bool,
) -> Result<PackedWeight> {
    let d_outs = weights.iter().map(|weight| weight.dims.0);
    let d_out = if is_gated {
        d_outs.max()
    } else {
        Some(d_outs.sum())
    };
    let shape = [d_out.unwrap_or(0), weights[0].dims.1];
    let format = weights[0].format;
    let mut read = |matrix: usize, rows: Range<usize>| {
        check_packing(2 * rows.len() * shape[1])?; // a byte for each quantized value, beside the file's bytes
        if is_gated {
            return weights[matrix].matrix.coded_rows(rows);
        }
        let (mut all, mut first) = (QuantizedWeightRows::default(), 0);
        for weight in weights {
            let end = first + weight.dims.0;
            let part = rows.start.clamp(first, end) - first..rows.end.clamp(first, end) - first;
            if !part.is_empty() {
                all.append(weight.matrix.coded_rows(part)?);
            }
            first = end;
        }
        Ok(all)
    };
    let refuse = |matrix: usize, reason: String| {
        candle_core::Error::from(weights[matrix].matrix.error(reason))
    };
    let cpu = packing.cpu;
    let n_weights = shape[0] * shape[1] * if is_gated { 2 } else { 1 };
    check_packing(n_weights * format.bits_by_group.0 / 8)?;
    packing.note_codes();
    let packed = PackedWeight::from_quantized(
        cpu,
        format,
        (shape, is_gated),
        &packing.pages,
        &mut read,
        refuse,
    )?;
    Ok(packed.with_order(weights[0].order.clone()))
}
