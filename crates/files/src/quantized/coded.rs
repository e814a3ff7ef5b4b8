//! Computes a matrix from its quantized rows: dequantized, or converted for the packed formats, which have the same quantized
//! values, with the same scales and zero points or minima.

use std::ops::Range;
use std::sync::Arc;

use safetensors::Dtype;

use super::rows::{CodeKind, QuantizedMatrix};
use candle_blocks_kernels::products::{
    GroupScales, QuantizedFormat, QuantizedWeightRows, ScaleType,
};
use candle_blocks_kernels::storage::{Zeros, in_runs};

use crate::tensors::{Coding, Compute, StoredForm, TensorFiles};
use candle_blocks_base::Result;

impl<S: QuantizedMatrix> Compute for S {
    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<Vec<f32>> {
        let n = self.rows_of_item();
        let weights =
            QuantizedMatrix::rows(self, files, rows.start * n..rows.end * n)?.dequantized();
        self.codes().check_finite(&weights)?;
        Ok(weights)
    }

    fn coding(&self, files: &TensorFiles) -> Result<Coding> {
        coding(self, files)
    }

    fn stored_form(&self) -> StoredForm {
        stored_form(self.kind())
    }

    fn coded_rows(
        &self,
        files: &TensorFiles,
        rows: Range<usize>,
        format: QuantizedFormat,
    ) -> Result<QuantizedWeightRows> {
        coded_rows(self, files, rows, format)
    }
}

/// Returns how a matrix can be packed directly from its quantized values.
fn coding(stored: &impl QuantizedMatrix, files: &TensorFiles) -> Result<Coding> {
    let refused = |reason: String| Ok(Coding::Refused(reason));
    let bits = match stored.kind() {
        CodeKind::Whole { bits } => bits,
        CodeKind::E2m1 => 4,
        CodeKind::Other(name) => {
            return refused(format!("{name} is not a scale times an integer"));
        }
    };
    if stored.scale_dtypes()[0] == Dtype::F8_E4M3 {
        return refused("its scales are FP8".to_string());
    }
    // One row shows the structure of all rows.
    let row = stored.rows(files, 0..1)?;
    let groups: &[usize] = match stored.kind() {
        CodeKind::E2m1 => &[32],
        _ => &[256, 128, 64, 32],
    };
    let (group_of, order) = in_runs(&row.group_of);
    let is_whole = |group: &&usize| {
        let mut parts = group_of.chunks(**group);
        parts.all(|part| part.iter().all(|of| *of == part[0]))
    };
    let Some(&group) = groups.iter().find(is_whole) else {
        let mut runs = group_of.chunk_by(|a, b| a == b);
        let shortest = runs.next().map_or(0, <[u32]>::len);
        return refused(format!(
            "its groups have {shortest} columns, expected a multiple of {}",
            groups[groups.len() - 1]
        ));
    };
    let number = match (stored.scale_dtypes(), row.factor == 1.0) {
        ([Dtype::F16, Dtype::F16], true) => ScaleType::F16,
        ([Dtype::BF16, Dtype::BF16], true) => ScaleType::Bf16,
        _ => ScaleType::F32,
    };
    let scales = match (&row.zeros, stored.kind()) {
        (_, CodeKind::E2m1) => match stored.scale_dtypes()[0] {
            Dtype::U8 | Dtype::F8_E8M0 if row.factor == 1.0 => GroupScales::Microscaled,
            _ => return refused("its scales are not powers of two".to_string()),
        },
        (Zeros::All(zero), _) => GroupScales::Zero {
            scales: number,
            zero: *zero as u8,
        },
        (Zeros::Each(_, least), _) => GroupScales::Zeros {
            scales: number,
            least: *least,
        },
        (Zeros::Behind(_), _) => GroupScales::Minima(number),
    };
    let bits = packed_bits(bits);
    let format = QuantizedFormat {
        bits_by_group: (bits, group),
        scales,
    };
    Ok(Coding::Codes(format, order.map(Arc::from)))
}

/// Returns the number of bits with which integers of `bits` bits are packed.
fn packed_bits(bits: usize) -> usize {
    match bits {
        0..=4 => 4,
        _ => 8,
    }
}

/// Returns the form in which quantized values of this kind are stored.
fn stored_form(kind: CodeKind) -> StoredForm {
    let bits = match kind {
        CodeKind::Whole { bits } => bits,
        CodeKind::E2m1 => 4,
        CodeKind::Other(name) => return StoredForm::Refused(name.to_string()),
    };
    StoredForm::Values {
        name: format!("{bits}-bit values"),
        bits,
        packed: packed_bits(bits),
    }
}

/// Returns rows of a matrix with that coding.
fn coded_rows(
    stored: &impl QuantizedMatrix,
    files: &TensorFiles,
    rows: Range<usize>,
    format: QuantizedFormat,
) -> Result<QuantizedWeightRows> {
    let rows = stored.rows(files, rows)?;
    // An E2M1 value is multiplied as twice its value.
    let factor = match stored.kind() {
        CodeKind::E2m1 => 0.5,
        _ => rows.factor,
    };
    let (_, group) = format.bits_by_group;
    Ok(rows.in_groups(group, factor))
}
