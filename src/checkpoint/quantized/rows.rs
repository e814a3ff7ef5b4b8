//! Rows of a quantised matrix: codes in groups that have a scale each.

use std::fmt;
use std::ops::Range;

use safetensors::Dtype;

use super::coded::{self, CodeKind};
use candle_blocks_kernels::products::{QuantizedFormat, QuantizedWeightRows};

use crate::checkpoint::files::{Coding, Compute, Part, StoredForm, TensorFiles};
use crate::error::Result;

/// A quantised matrix in the files, `[d_out, d_in]`; of several in one tensor, their rows one behind the other.
pub(super) trait Stored: fmt::Debug + Send + Sync {
    /// Some of its rows.
    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<QuantizedRows>;
    /// The tensor that errors name.
    fn codes(&self) -> &Part;
    /// What its codes are.
    fn kind(&self) -> CodeKind;
    /// The types that its scales are stored in, and what is added behind; of others, the scales' again.
    fn scale_dtypes(&self) -> [Dtype; 2];
    /// How many rows one of several matrices has; 1 of a single one.
    fn rows_of_item(&self) -> usize {
        1
    }
}

/// Rows of codes. A weight is `((value of its code) - zero) * scale * factor`, each product rounded to f32; that is the order
/// of the libraries that write the formats, and so part of the result.
pub(super) struct QuantizedRows {
    /// `[rows, columns]`.
    pub codes: Vec<u8>,
    pub columns: usize,
    /// What a code stands for; the code itself if absent.
    pub values: Option<Box<[f32; 256]>>,
    /// The group of a column.
    pub group_of: Vec<u32>,
    pub n_groups: usize,
    /// `[rows, groups]`.
    pub scales: Vec<f32>,
    pub zeros: Zeros,
    pub factor: f32,
}

/// What is taken from a value before it is scaled, or added behind.
pub(super) enum Zeros {
    /// The same everywhere.
    All(f32),
    /// `[rows, groups]`, none of which can be less than this one, nor 256 more.
    Each(Vec<f32>, u8),
    /// `[rows, groups]`, added to the scaled value.
    Behind(Vec<f32>),
}

impl QuantizedRows {
    /// The weights, `[rows, columns]`.
    fn dequantized(&self) -> Vec<f32> {
        match &self.values {
            Some(table) => self.of_values(|code| table[usize::from(code)]),
            None => self.of_values(f32::from),
        }
    }

    fn of_values(&self, value: impl Fn(u8) -> f32) -> Vec<f32> {
        // Columns of one group beside each other, as all but reordered ones are, go through one loop without a look-up.
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

impl<S: Stored> Compute for S {
    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<Vec<f32>> {
        let n = self.rows_of_item();
        let weights = Stored::rows(self, files, rows.start * n..rows.end * n)?.dequantized();
        self.codes().check_finite(&weights)?;
        Ok(weights)
    }

    fn coding(&self, files: &TensorFiles) -> Result<Coding> {
        coded::coding(self, files)
    }

    fn stored_form(&self) -> StoredForm {
        coded::stored_form(self.kind())
    }

    fn coded_rows(
        &self,
        files: &TensorFiles,
        rows: Range<usize>,
        format: QuantizedFormat,
    ) -> Result<QuantizedWeightRows> {
        coded::coded_rows(self, files, rows, format)
    }
}

/// Consecutive groups of `size` columns, the last of which may be shorter.
pub(super) fn groups(columns: usize, size: usize) -> Vec<u32> {
    (0..columns)
        .map(|column| (column / size.max(1)) as u32)
        .collect()
}

/// How many columns a group has, where so many groups have a scale: the size that the configuration gives, or all columns.
pub(super) fn group_size(
    scales: &Part,
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
            "it has scales for {n_groups} groups of {columns} columns, which no group size of the configuration gives ({configured:?})"
        ))),
    }
}
