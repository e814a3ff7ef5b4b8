//! AWQ (<https://arxiv.org/abs/2306.00978>), as AutoAWQ's "gemm" version writes it: a word has eight 4-bit values for
//! neighboring outputs, in a special order.

use std::ops::Range;

use safetensors::Dtype;

use super::gptq::WORDS;
use super::rows::{CodeKind, QuantizedMatrix, QuantizedRows, Zeros, group_size, groups};
use super::{DequantizedMatrix, QuantizedModule};
use crate::tensors::{StoredTensor, TensorFiles};
use candle_blocks_base::Result;

#[derive(Debug)]
pub(super) struct Awq {
    /// `[columns, rows / 8]`.
    weights: StoredTensor,
    /// `[groups, rows / 8]`.
    zeros: StoredTensor,
    /// `[groups, rows]`.
    scales: StoredTensor,
    group_size: usize,
}

/// The position of an output's four bits in a word.
const AWQ_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

impl Awq {
    pub fn matrix(
        module: &mut QuantizedModule,
        configured: Option<usize>,
    ) -> Result<Option<DequantizedMatrix>> {
        let Some(weights) = module.take("qweight") else {
            return Ok(None);
        };
        let (zeros, scales) = (module.needs("qzeros")?, module.needs("scales")?);
        weights.check_dtype(&WORDS)?;
        zeros.check_dtype(&WORDS)?;
        let (columns, n_words) = weights.dims2()?;
        let (n_groups, n_rows) = scales.dims2()?;
        weights.check_shape(&[columns, n_rows / 8])?;
        if !n_rows.is_multiple_of(8) {
            return Err(scales.error(format!("it has {n_rows} outputs, expected a multiple of 8")));
        }
        zeros.check_shape(&[n_groups, n_words])?;
        let group_size = group_size(&scales, columns, n_groups, &[configured.unwrap_or(columns)])?;
        let parts = vec![weights.clone(), zeros.clone(), scales.clone()];
        let stored = Self {
            weights,
            zeros,
            scales,
            group_size,
        };
        Ok(Some(DequantizedMatrix::new(
            parts,
            vec![n_rows, columns],
            stored,
        )))
    }
}

impl QuantizedMatrix for Awq {
    fn kind(&self) -> CodeKind {
        CodeKind::Whole { bits: 4 }
    }

    fn scale_dtypes(&self) -> [Dtype; 2] {
        [self.scales.info.dtype; 2]
    }

    fn codes(&self) -> &StoredTensor {
        &self.weights
    }

    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<QuantizedRows> {
        let (columns, width) = (self.weights.info.shape[0], self.weights.info.shape[1]);
        let word_columns = rows.start / 8..rows.end.div_ceil(8);
        let (n_groups, n_rows) = (self.scales.info.shape[0], self.scales.info.shape[1]);
        let code = |words: &[u32], width: usize, line: usize, row: usize| {
            (words[line * width + row / 8] >> (4 * AWQ_ORDER[row % 8]) & 15) as u8
        };
        let words: Vec<u32> = files.part_columns(&self.weights, word_columns.clone())?;
        let weight_code = |(line, row)| {
            code(
                &words,
                word_columns.len(),
                line,
                row - 8 * word_columns.start,
            )
        };
        let zeros: Vec<u32> = files.part(&self.zeros)?;
        let scales = files.part_in_f32(&self.scales)?;
        let of_groups = || {
            rows.clone()
                .flat_map(|row| (0..n_groups).map(move |group| (group, row)))
        };
        let lines = |row| (0..columns).map(move |line| (line, row));
        let cells = rows.clone().flat_map(lines);
        Ok(QuantizedRows {
            codes: cells.map(weight_code).collect(),
            columns,
            values: None,
            group_of: groups(columns, self.group_size),
            n_groups,
            scales: of_groups()
                .map(|(group, row)| scales[group * n_rows + row])
                .collect(),
            zeros: Zeros::Each(
                of_groups()
                    .map(|(group, row)| f32::from(code(&zeros, width, group, row)))
                    .collect(),
                0,
            ),
            factor: 1.0,
        })
    }
}
