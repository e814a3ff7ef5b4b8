//! Quantized values along each row, with scales for groups of columns or for blocks: the layout of most formats.

use std::ops::Range;

use safetensors::Dtype;

use super::rows::{CodeKind, QuantizedMatrix, groups};
use crate::tensors::{StoredTensor, TensorFiles};
use candle_blocks_base::Result;
use candle_blocks_kernels::storage::bits::{append_streams, n_words, nibbles, unsigned};
use candle_blocks_kernels::storage::numbers::{
    E2M1, divide, e4m3, from_e4m3, from_e8m0, multiply, table,
};
use candle_blocks_kernels::storage::{QuantizedRows, Zeros};

#[derive(Debug)]
pub(super) struct Grouped {
    pub codes: StoredTensor,
    pub packing: CodePacking,
    pub n_rows: usize,
    pub columns: usize,
    pub scales: Scales,
    pub zeros: ZeroSource,
    /// Each column's group, `[columns]`, if groups are not contiguous.
    pub index: Option<StoredTensor>,
    /// A scale that applies to all scales.
    pub global: Option<Global>,
    pub factor: f32,
    pub rows_of_item: usize,
}

/// The arrangement and the meaning of quantized values in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodePacking {
    /// Unsigned integers in a bit stream.
    Words { bits: usize },
    /// A signed integer in each byte; 128 is added to make it unsigned.
    Int8,
    /// E4M3 in each byte.
    E4m3,
    /// Two E2M1 in each byte, the first in the low half.
    E2m1,
}

impl CodePacking {
    /// Returns a value's bits.
    pub fn bits(self) -> usize {
        match self {
            Self::Words { bits } => bits,
            Self::Int8 | Self::E4m3 => 8,
            Self::E2m1 => 4,
        }
    }
}

/// Scales `[row blocks, groups]`, each for `rows` rows and `columns` columns.
#[derive(Debug)]
pub(super) struct Scales {
    pub part: StoredTensor,
    pub n_groups: usize,
    pub rows: usize,
    pub columns: usize,
}

#[derive(Debug)]
pub(super) enum ZeroSource {
    /// The same for all groups.
    All(f32),
    /// Signed bytes in the scales' shape: zero points minus `2^(bits - 1)`.
    Bytes { part: StoredTensor, bits: usize },
    /// Quantized zero points `[rows, groups]`, in bit streams along the rows.
    Words { part: StoredTensor, bits: usize },
    /// Offsets `[rows, groups]`, added after scaling.
    Behind(StoredTensor),
}

/// A number by which all scales of a tensor are multiplied or divided.
#[derive(Debug)]
pub(super) enum Global {
    Times(StoredTensor),
    Over(StoredTensor),
}

impl Scales {
    /// Returns the scales of all row blocks; each must be finite and not zero.
    fn numbers(&self, files: &TensorFiles) -> Result<Vec<f32>> {
        let numbers: Vec<f32> = match self.part.info.dtype {
            Dtype::U8 | Dtype::F8_E8M0 => from_e8m0(&files.part(&self.part)?),
            Dtype::F8_E4M3 => from_e4m3(&files.part(&self.part)?),
            _ => return files.part_in_f32(&self.part),
        };
        self.part.check_finite(&numbers)?;
        Ok(numbers)
    }
}

impl Grouped {
    fn row_codes(&self, files: &TensorFiles, rows: Range<usize>) -> Result<Vec<u8>> {
        let span = |width: usize| rows.start * width..rows.end * width;
        Ok(match self.packing {
            CodePacking::Words { bits } => {
                let width = n_words(self.columns, bits).unwrap_or(0);
                let words: Vec<u32> = files.part_span(&self.codes, span(width))?;
                let mut codes = Vec::with_capacity(rows.len() * self.columns);
                append_streams(&words, bits, self.columns, &mut codes);
                codes
            }
            CodePacking::Int8 => unsigned(&files.part_span::<u8>(&self.codes, span(self.columns))?),
            CodePacking::E4m3 => self.bytes(files, span(self.columns))?,
            CodePacking::E2m1 => nibbles(&self.bytes(files, span(self.columns / 2))?),
        })
    }

    /// Returns bytes of the quantized values, which may be stored in words, the first in the lowest bits.
    fn bytes(&self, files: &TensorFiles, span: Range<usize>) -> Result<Vec<u8>> {
        if self.codes.info.dtype != Dtype::U32 {
            return files.part_span(&self.codes, span);
        }
        let words: Vec<u32> = files.part_span(&self.codes, span.start / 4..span.end / 4)?;
        Ok(bytemuck::cast_slice(&words).to_vec()) // little-endian, as the reader of files demands
    }

    fn row_zeros(&self, files: &TensorFiles, rows: Range<usize>) -> Result<Zeros> {
        let n_groups = self.scales.n_groups;
        let span = rows.start * n_groups..rows.end * n_groups;
        Ok(match &self.zeros {
            ZeroSource::All(zero) => Zeros::All(*zero),
            ZeroSource::Bytes { part, bits } => {
                let bytes: Vec<i8> = files.part(part)?;
                let middle = 1 << (bits - 1);
                if let Some(beyond) = bytes
                    .iter()
                    .find(|byte| !(-middle..middle).contains(&i32::from(**byte)))
                {
                    return Err(part.error(format!(
                        "it holds the zero point {beyond}, expected {} to {} for weights of {bits} bits",
                        -middle,
                        middle - 1
                    )));
                }
                let row_values = |row: usize| {
                    let at = row / self.scales.rows * n_groups;
                    bytes[at..at + n_groups].iter()
                };
                let all = rows.flat_map(row_values);
                Zeros::Each(
                    all.map(|byte| (i32::from(*byte) + middle) as f32).collect(),
                    0,
                )
            }
            ZeroSource::Words { part, bits } => {
                let words: Vec<u32> = files.part(part)?;
                let group_value = |group| {
                    let stream = words.iter().skip(group).step_by(n_groups).copied();
                    let stream: Vec<u32> = stream.collect();
                    let mut zeros = Vec::with_capacity(self.n_rows);
                    append_streams(&stream, *bits, self.n_rows, &mut zeros);
                    zeros
                };
                let group_values: Vec<Vec<u8>> = (0..n_groups).map(group_value).collect();
                let each = rows.flat_map(|row| group_values.iter().map(move |zeros| zeros[row]));
                Zeros::Each(each.map(f32::from).collect(), 0)
            }
            ZeroSource::Behind(part) => Zeros::Behind(files.part_in_f32(part)?[span].to_vec()),
        })
    }

    fn group_of(&self, files: &TensorFiles) -> Result<Vec<u32>> {
        match &self.index {
            None => Ok(groups(self.columns, self.scales.columns)),
            Some(index) => index.group_of(files, self.scales.n_groups),
        }
    }
}

impl QuantizedMatrix for Grouped {
    fn kind(&self) -> CodeKind {
        match self.packing {
            CodePacking::Words { bits } => CodeKind::Whole { bits },
            CodePacking::Int8 => CodeKind::Whole { bits: 8 },
            CodePacking::E4m3 => CodeKind::Other("a value of FP8"),
            CodePacking::E2m1 => CodeKind::E2m1,
        }
    }

    fn scale_dtypes(&self) -> [Dtype; 2] {
        let scales = self.scales.part.info.dtype;
        match &self.zeros {
            ZeroSource::Behind(part) => [scales, part.info.dtype],
            _ => [scales; 2],
        }
    }

    fn codes(&self) -> &StoredTensor {
        &self.codes
    }

    fn rows_of_item(&self) -> usize {
        self.rows_of_item
    }

    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<QuantizedRows> {
        let Scales { n_groups, .. } = self.scales;
        let mut scales = self.scales.numbers(files)?;
        match &self.global {
            None => {}
            Some(Global::Times(part)) => {
                let global = one(files, part)?;
                multiply(&mut scales, global);
            }
            Some(Global::Over(part)) => {
                let global = one(files, part)?;
                divide(&mut scales, global);
            }
        }
        let mut row_scales = Vec::with_capacity(rows.len() * n_groups);
        for row in rows.clone() {
            let at = row / self.scales.rows * n_groups;
            row_scales.extend_from_slice(&scales[at..at + n_groups]);
        }
        Ok(QuantizedRows {
            codes: self.row_codes(files, rows.clone())?,
            columns: self.columns,
            values: match self.packing {
                CodePacking::Words { .. } | CodePacking::Int8 => None,
                CodePacking::E4m3 => Some(table(e4m3)),
                CodePacking::E2m1 => Some(table(|code| E2M1[usize::from(code & 15)])),
            },
            group_of: self.group_of(files)?,
            n_groups,
            scales: row_scales,
            zeros: self.row_zeros(files, rows)?,
            factor: self.factor,
        })
    }
}

fn one(files: &TensorFiles, part: &StoredTensor) -> Result<f32> {
    match files.part_in_f32(part)?[..] {
        [number] => Ok(number),
        ref numbers => Err(part.error(format!(
            "it contains {} values, expected one",
            numbers.len()
        ))),
    }
}

impl StoredTensor {
    /// Returns each column's group: indices below `n_groups`.
    pub(super) fn group_of(&self, files: &TensorFiles, n_groups: usize) -> Result<Vec<u32>> {
        let group_of: Vec<i32> = files.part(self)?;
        let checked = |group: i32| match u32::try_from(group) {
            Ok(group) if (group as usize) < n_groups => Ok(group),
            _ => {
                let last = n_groups.saturating_sub(1);
                Err(self.error(format!(
                    "it contains the group {group}, expected 0 to {last}"
                )))
            }
        };
        group_of.into_iter().map(checked).collect()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;

    #[test]
    fn e4m3_is_candles() {
        let codes: Vec<u8> = (0..=255).collect();
        let theirs = Tensor::from_raw_buffer(&codes, DType::F8E4M3, &[256], &Device::Cpu).unwrap();
        let theirs = theirs
            .to_dtype(DType::F32)
            .unwrap()
            .to_vec1::<f32>()
            .unwrap();
        for (code, theirs) in codes.into_iter().zip(theirs) {
            let ours = e4m3(code);
            let is_one = ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan());
            assert!(is_one, "{code}: {ours}, expected {theirs}");
        }
    }
}
