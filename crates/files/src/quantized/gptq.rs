//! GPTQ (<https://arxiv.org/abs/2210.17323>), as AutoGPTQ and GPTQModel write it: bit streams along the columns.

use std::ops::Range;
use std::sync::OnceLock;

use safetensors::Dtype;

use super::rows::{CodeKind, QuantizedMatrix, group_size, groups};
use super::{DequantizedMatrix, QuantizedModule};
use crate::tensors::{StoredTensor, TensorFiles};
use candle_blocks_base::Result;
use candle_blocks_kernels::storage::bits::{append_streams, interleaved_streams, n_words};
use candle_blocks_kernels::storage::{QuantizedRows, Zeros, transposed};

pub(super) const WORDS: [Dtype; 2] = [Dtype::I32, Dtype::U32];

/// The storage of zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZeroPoints {
    /// Stored minus one: AutoGPTQ's first format.
    OneLess,
    AsTheyAre,
}

impl ZeroPoints {
    /// Returns the zero point for a stored value of 0.
    fn least(self) -> u8 {
        u8::from(self == Self::OneLess)
    }
}

#[derive(Debug)]
pub(super) struct Gptq {
    /// `[columns · bits / 32, rows]`, each column a bit stream.
    weights: StoredTensor,
    /// `[groups, rows · bits / 32]`, each row a bit stream.
    zeros: StoredTensor,
    /// `[groups, rows]`.
    scales: StoredTensor,
    /// Each column's group, `[columns]`.
    index: Option<StoredTensor>,
    bits: usize,
    group_size: usize,
    zero_points: ZeroPoints,
    symmetric: bool,
    /// The zero point for all groups, if it is the middle of the range; computed when the zero points are first read.
    middle: OnceLock<Option<f32>>,
}

/// The GPTQ settings in `quantization_config`.
#[derive(Clone, Copy, Debug)]
pub(super) struct GptqConfig {
    pub bits: usize,
    /// `None`: all columns.
    pub group_size: Option<usize>,
    pub zero_points: ZeroPoints,
    /// The configuration declares that all zero points are the middle of the range. They are read anyway, because some
    /// programs write others.
    pub symmetric: bool,
    /// Some modules have other bits and groups.
    pub varies: bool,
}

impl Gptq {
    /// Returns a module's matrix, whose shapes must agree with the configuration.
    pub fn matrix(
        module: &mut QuantizedModule,
        config: GptqConfig,
    ) -> Result<Option<DequantizedMatrix>> {
        let Some(weights) = module.take("qweight") else {
            return Ok(None);
        };
        let (zeros, scales) = (module.needs("qzeros")?, module.needs("scales")?);
        let index = module.take("g_idx");
        weights.check_dtype(&WORDS)?;
        zeros.check_dtype(&WORDS)?;
        let (n_rows_of_words, n_rows) = weights.dims2()?;
        // The width of the zero points determines a module's number of bits.
        let width = zeros.info.shape.last().copied();
        let fits = |bits: &usize| n_words(n_rows, *bits) == width;
        let mut all = [config.bits, 2, 3, 4, 8].into_iter();
        let bits = match &index {
            _ if !config.varies => config.bits,
            Some(index) => {
                let columns: usize = index.info.shape.iter().product();
                n_rows_of_words.saturating_mul(32) / columns.max(1)
            }
            None => all.find(fits).unwrap_or(config.bits),
        };
        let columns = n_rows_of_words.saturating_mul(32) / bits.max(1);
        if !matches!(bits, 2 | 3 | 4 | 8) || n_words(columns, bits) != Some(n_rows_of_words) {
            let reason = format!(
                "its {n_rows_of_words} rows of words do not contain an integer number of {bits}-bit values"
            );
            return Err(weights.error(reason));
        }
        let (n_groups, _) = scales.dims2()?;
        scales.check_shape(&[n_groups, n_rows])?;
        if zeros.info.shape != [n_groups, n_words(n_rows, bits).unwrap_or(0)] {
            let found = &zeros.info.shape;
            return Err(zeros.error(format!(
                "its shape is {found:?}, which does not match {bits}-bit zero points for \
                 {n_groups} groups of {n_rows} outputs; check the key bits in the \
                 configuration"
            )));
        }
        if let Some(index) = &index {
            index.check_dtype(&[Dtype::I32])?;
            index.check_shape(&[columns])?;
        }
        let configured = [config.group_size.unwrap_or(columns)];
        let fits = |size: &usize| *size > 0 && columns.div_ceil(*size) == n_groups;
        let group_size = match configured.iter().find(|size| fits(size)) {
            None if config.varies => columns.div_ceil(n_groups.max(1)).max(1),
            _ => group_size(&scales, columns, n_groups, &configured)?,
        };
        let parts = [Some(&weights), Some(&zeros), Some(&scales), index.as_ref()];
        let parts: Vec<StoredTensor> = parts.into_iter().flatten().cloned().collect();
        let stored = Self {
            weights,
            zeros,
            scales,
            index,
            bits,
            group_size,
            zero_points: config.zero_points,
            symmetric: config.symmetric,
            middle: OnceLock::new(),
        };
        Ok(Some(DequantizedMatrix::new(
            parts,
            vec![n_rows, columns],
            stored,
        )))
    }

    fn columns(&self) -> usize {
        self.weights.info.shape[0] * 32 / self.bits
    }

    /// Returns the zero points for all groups, `[groups, rows]`.
    fn zeros(&self, files: &TensorFiles) -> Result<Vec<f32>> {
        let words: Vec<u32> = files.part(&self.zeros)?;
        let mut zeros = Vec::new();
        append_streams(&words, self.bits, self.weights.info.shape[1], &mut zeros);
        // If stored minus one, all bits set means the largest zero point, 2^bits, as in AutoGPTQ's own layers.
        let zero = |code: u8| f32::from(code) + f32::from(self.zero_points.least());
        Ok(zeros.into_iter().map(zero).collect())
    }

    /// Returns the middle of the range, if every zero point is the middle. If the configuration declares symmetric weights,
    /// both storages are accepted: some programs write one and declare the other.
    fn middle(&self, files: &TensorFiles) -> Result<Option<f32>> {
        if let Some(middle) = self.middle.get() {
            return Ok(*middle);
        }
        let middle = (1 << (self.bits - 1)) as f32;
        let zeros = self.zeros(files)?;
        let mut stored = vec![middle];
        if self.symmetric {
            let other = match self.zero_points {
                ZeroPoints::OneLess => middle + 1.0,
                ZeroPoints::AsTheyAre => middle - 1.0,
            };
            stored.push(other);
        }
        let is_all = |of: &f32| zeros.iter().all(|zero| zero == of);
        let middle = stored.iter().any(is_all).then_some(middle);
        Ok(*self.middle.get_or_init(|| middle))
    }

    fn group_of(&self, files: &TensorFiles, n_groups: usize) -> Result<Vec<u32>> {
        match &self.index {
            None => Ok(groups(self.columns(), self.group_size)),
            Some(index) => index.group_of(files, n_groups),
        }
    }
}

impl QuantizedMatrix for Gptq {
    fn kind(&self) -> CodeKind {
        CodeKind::Whole { bits: self.bits }
    }

    fn scale_dtypes(&self) -> [Dtype; 2] {
        [self.scales.info.dtype; 2]
    }

    fn codes(&self) -> &StoredTensor {
        &self.weights
    }

    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<QuantizedRows> {
        let (n_groups, columns) = (self.scales.info.shape[0], self.columns());
        let words: Vec<u32> = files.part_columns(&self.weights, rows.clone())?;
        let codes = interleaved_streams(&words, rows.len(), self.bits, columns);
        let n_rows = self.weights.info.shape[1];
        let turned = |numbers: &[f32]| transposed(numbers, n_rows, rows.clone());
        let zeros = match self.middle(files)? {
            Some(middle) => Zeros::All(middle),
            None => Zeros::Each(turned(&self.zeros(files)?), self.zero_points.least()),
        };
        Ok(QuantizedRows {
            codes,
            columns,
            values: None,
            group_of: self.group_of(files, n_groups)?,
            n_groups,
            scales: turned(&files.part_in_f32(&self.scales)?),
            zeros,
            factor: 1.0,
        })
    }
}
