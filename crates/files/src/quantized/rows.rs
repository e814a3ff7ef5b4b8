//! Rows of a quantized matrix: quantized values in groups with one scale each.

use std::fmt;
use std::ops::Range;

use safetensors::Dtype;

use crate::tensors::{StoredTensor, TensorFiles};
use candle_blocks_base::Result;

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

/// Quantized rows. A weight is `((value of its code) - zero) * scale * factor`, with each product rounded to f32. The
/// libraries that write the formats use this order, so it is part of the result.
pub(super) struct QuantizedRows {
    /// `[rows, columns]`.
    pub codes: Vec<u8>,
    pub columns: usize,
    /// The value for each quantized value; the quantized value itself if absent.
    pub values: Option<Box<[f32; 256]>>,
    /// Each column's group.
    pub group_of: Vec<u32>,
    pub n_groups: usize,
    /// `[rows, groups]`.
    pub scales: Vec<f32>,
    pub zeros: Zeros,
    pub factor: f32,
}

/// Zero points that are subtracted before scaling, or offsets that are added after it.
pub(super) enum Zeros {
    /// The same for all groups.
    All(f32),
    /// `[rows, groups]`, each at least the second field, and less than 256 above it.
    Each(Vec<f32>, u8),
    /// `[rows, groups]`, added to the scaled value.
    Behind(Vec<f32>),
}

impl QuantizedRows {
    /// Returns the weights, `[rows, columns]`.
    pub fn dequantized(&self) -> Vec<f32> {
        match &self.values {
            Some(table) => self.of_values(|code| table[usize::from(code)]),
            None => self.of_values(f32::from),
        }
    }

    fn of_values(&self, value: impl Fn(u8) -> f32) -> Vec<f32> {
        // Consecutive columns in the same group, the usual case without reordering, share one loop without a lookup.
        let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
        for of_run in self.group_of.chunk_by(|a, b| a == b) {
            let start = runs.last().map_or(0, |(columns, _)| columns.end);
            runs.push((start..start + of_run.len(), of_run[0] as usize));
        }
        let factor = self.factor;
        let mut weights = vec![0.0; self.codes.len()];
        let rows = self.codes.chunks_exact(self.columns.max(1));
        let rows = rows.zip(weights.chunks_exact_mut(self.columns.max(1)));
        for (row, (codes, weights)) in rows.enumerate() {
            for (columns, group) in &runs {
                let at = row * self.n_groups + group;
                let scale = self.scales[at];
                let pairs = weights[columns.clone()]
                    .iter_mut()
                    .zip(&codes[columns.clone()]);
                let scaled = |zero| move |code| (code - zero) * scale * factor;
                match &self.zeros {
                    Zeros::All(zero) => {
                        pairs.for_each(|(w, &code)| *w = scaled(*zero)(value(code)))
                    }
                    Zeros::Each(zeros, _) => {
                        pairs.for_each(|(w, &code)| *w = scaled(zeros[at])(value(code)))
                    }
                    Zeros::Behind(offsets) => {
                        let offset = offsets[at];
                        pairs.for_each(|(w, &code)| *w = value(code) * scale + offset);
                    }
                }
            }
        }
        weights
    }
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
