//! AWQ (<https://arxiv.org/abs/2306.00978>), as AutoAWQ's "gemm" version writes it: a word has eight 4-bit values for
//! neighboring outputs, in a special order.

use std::ops::Range;

use safetensors::Dtype;

use super::gptq::WORDS;
use super::rows::{CodeKind, QuantizedMatrix, group_size, groups};
use super::{DequantizedMatrix, QuantizedModule};
use crate::tensors::{StoredTensor, TensorFiles};
use candle_blocks_base::Result;
use candle_blocks_kernels::storage::bits::awq_rows;
use candle_blocks_kernels::storage::{QuantizedRows, Zeros, transposed};

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
        let (n_groups, n_rows) = (self.scales.info.shape[0], self.scales.info.shape[1]);
        let word_columns = rows.start / 8..rows.end.div_ceil(8);
        let words: Vec<u32> = files.part_columns(&self.weights, word_columns.clone())?;
        let here = rows.start - 8 * word_columns.start..rows.end - 8 * word_columns.start;
        let zeros: Vec<u32> = files.part(&self.zeros)?;
        let zeros = awq_rows(&zeros, width, rows.clone());
        Ok(QuantizedRows {
            codes: awq_rows(&words, word_columns.len(), here),
            columns,
            values: None,
            group_of: groups(columns, self.group_size),
            n_groups,
            scales: transposed(&files.part_in_f32(&self.scales)?, n_rows, rows),
            zeros: Zeros::Each(zeros.into_iter().map(f32::from).collect(), 0),
            factor: 1.0,
        })
    }
}
