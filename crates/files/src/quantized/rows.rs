//! The interface of a quantized matrix, whose rows are quantized values in groups with one scale each.

use std::fmt;
use std::ops::Range;

use safetensors::Dtype;

use crate::tensors::{StoredTensor, TensorFiles};
use candle_blocks_base::Result;
use candle_blocks_kernels::storage::QuantizedRows;

/// A quantized matrix in the files, `[d_out, d_in]`. If one tensor stacks several matrices, their rows are concatenated.
pub(super) trait QuantizedMatrix: fmt::Debug + Send + Sync {
    /// Returns some of its rows.
    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<QuantizedRows>;
    /// Returns the tensor that errors name.
    fn codes(&self) -> &StoredTensor;
    /// Returns what kind its quantized values are.
    fn kind(&self) -> CodeKind;
    /// Returns the dtypes of its scales and of offsets that are added after scaling; without offsets, repeats the scales'
    /// dtype.
    fn scale_dtypes(&self) -> [Dtype; 2];
    /// Returns the number of rows of one matrix in a stack; 1 for a single matrix.
    fn rows_of_item(&self) -> usize {
        1
    }
}

/// The kind of a matrix's quantized values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeKind {
    /// Integers with this number of bits.
    Whole { bits: usize },
    /// E2M1.
    E2m1,
    /// Other kinds, by name.
    Other(&'static str),
}

/// Returns consecutive groups with `size` columns; the last one may be shorter.
pub(super) fn groups(columns: usize, size: usize) -> Vec<u32> {
    (0..columns)
        .map(|column| (column / size.max(1)) as u32)
        .collect()
}

/// Returns the number of columns in a group, given the number of groups with a scale: the configured size, or all columns.
pub(super) fn group_size(
    scales: &StoredTensor,
    columns: usize,
    n_groups: usize,
    configured: &[usize],
) -> Result<usize> {
    if n_groups == 1 {
        return Ok(columns.max(1));
    }
    let fits = |size: &&usize| **size > 0 && columns.div_ceil(**size) == n_groups;
    match configured.iter().find(fits) {
        Some(size) => Ok(*size),
        None => Err(scales.error(format!(
            "it has scales for {n_groups} groups of {columns} columns, which matches no group size \
             in the configuration ({configured:?})"
        ))),
    }
}
