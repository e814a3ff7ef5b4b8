//! bitsandbytes: 8-bit values with a scale for each row (<https://arxiv.org/abs/2208.07339>), or 4-bit indices into a table
//! of sixteen values with a scale for each block (<https://arxiv.org/abs/2305.14314>).

use std::ops::Range;

use safetensors::Dtype;
use serde::Deserialize;

use super::grouped::{CodePacking, Grouped, Scales, ZeroSource};
use super::rows::{CodeKind, QuantizedMatrix, groups};
use super::{DequantizedMatrix, QuantizedModule};
use crate::tensors::{StoredTensor, TensorFiles};
use candle_blocks_base::Result;
use candle_blocks_kernels::storage::{
    QuantizedRows, Zeros, bits::high_nibbles_first, numbers::table,
};

/// The states for both tables of sixteen values.
const STATES: [&str; 2] = [
    "weight.quant_state.bitsandbytes__nf4",
    "weight.quant_state.bitsandbytes__fp4",
];

pub(super) fn matrix(module: &mut QuantizedModule) -> Result<Option<DequantizedMatrix>> {
    if module.has("SCB") {
        let (codes, scales) = (module.needs("weight")?, module.needs("SCB")?);
        module.take("weight_format");
        return eight_bits(codes, scales).map(Some);
    }
    for state in STATES {
        if let Some(state) = module.take(state) {
            return four_bits(module, state).map(Some);
        }
    }
    Ok(None)
}

/// `weight = code · scale / 127`, as bitsandbytes computes it.
fn eight_bits(codes: StoredTensor, scales: StoredTensor) -> Result<DequantizedMatrix> {
    codes.check_dtype(&[Dtype::I8])?;
    let (n_rows, columns) = codes.dims2()?;
    scales.check_shape(&[n_rows])?;
    let scales = Scales {
        part: scales,
        n_groups: 1,
        rows: 1,
        columns: columns.max(1),
    };
    let stored = Grouped::new(codes, CodePacking::Int8, (n_rows, columns), scales);
    let mut stored = stored.with_zeros(ZeroSource::All(128.0));
    stored.factor = 1.0 / 127.0; // part of the result
    stored.matrix()
}

/// The description that bitsandbytes writes for a matrix.
#[derive(Deserialize)]
struct QuantState {
    blocksize: usize,
    shape: [usize; 2],
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

#[derive(Debug)]
struct FourBitBlocks {
    /// Two 4-bit values in a byte, the first in the high half; all rows are concatenated.
    codes: StoredTensor,
    /// `[blocks]`.
    scales: StoredTensor,
    /// `[16]`.
    numbers: StoredTensor,
    nested: Option<Nested>,
    columns: usize,
    size: usize,
}

/// Scales that are quantized themselves.
#[derive(Debug)]
struct Nested {
    scales: StoredTensor,
    numbers: StoredTensor,
    size: usize,
    offset: f32,
}

fn four_bits(module: &mut QuantizedModule, state: StoredTensor) -> Result<DequantizedMatrix> {
    let malformed =
        |reason: String| state.error(format!("the quantization state is malformed: {reason}"));
    let parsed = serde_json::from_slice(&module.files.part::<u8>(&state)?);
    let parsed: QuantState = parsed.map_err(|error| malformed(error.to_string()))?;
    let QuantState {
        blocksize: size,
        shape: [n_rows, columns],
        ..
    } = parsed;
    let codes = module.needs("weight")?;
    codes.check_dtype(&[Dtype::U8])?;
    let n = n_rows.saturating_mul(columns);
    if size == 0 || n.div_ceil(2) != codes.info.n_bytes {
        let n_bytes = codes.info.n_bytes;
        return Err(malformed(format!(
            "[{n_rows}, {columns}] in blocks of {size} does not take {n_bytes} bytes"
        )));
    }
    let (scales, numbers) = (
        module.needs("weight.absmax")?,
        module.needs("weight.quant_map")?,
    );
    scales.check_shape(&[n.div_ceil(size)])?;
    numbers.check_shape(&[16])?;
    let nested = match module.take("weight.nested_absmax") {
        None => None,
        Some(nested) => {
            let (Some(size @ 1..), Some(offset)) = (parsed.nested_blocksize, parsed.nested_offset)
            else {
                return Err(malformed(
                    "nested scales need nested_blocksize and nested_offset".to_string(),
                ));
            };
            let numbers = module.needs("weight.nested_quant_map")?;
            numbers.check_shape(&[256])?;
            nested.check_shape(&[scales.info.shape[0].div_ceil(size)])?;
            scales.check_dtype(&[Dtype::U8])?;
            Some(Nested {
                scales: nested,
                numbers,
                size,
                offset,
            })
        }
    };
    let parts = vec![codes.clone(), scales.clone(), numbers.clone(), state];
    let stored = FourBitBlocks {
        codes,
        scales,
        numbers,
        nested,
        columns,
        size,
    };
    Ok(DequantizedMatrix::new(parts, vec![n_rows, columns], stored))
}

impl FourBitBlocks {
    fn all_scales(&self, files: &TensorFiles) -> Result<Vec<f32>> {
        let Some(nested) = &self.nested else {
            return files.part_in_f32(&self.scales);
        };
        let codes: Vec<u8> = files.part(&self.scales)?;
        let (scales, numbers) = (
            files.part_in_f32(&nested.scales)?,
            files.part_in_f32(&nested.numbers)?,
        );
        let scale = |(i, code): (usize, u8)| {
            numbers[usize::from(code)] * scales[i / nested.size] + nested.offset
        };
        Ok(codes.into_iter().enumerate().map(scale).collect())
    }
}

impl QuantizedMatrix for FourBitBlocks {
    fn kind(&self) -> CodeKind {
        CodeKind::Other("a value of nf4 or fp4")
    }

    fn scale_dtypes(&self) -> [Dtype; 2] {
        [self.scales.info.dtype; 2]
    }

    fn codes(&self) -> &StoredTensor {
        &self.codes
    }

    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<QuantizedRows> {
        let span = rows.start * self.columns..rows.end * self.columns;
        let bytes: Vec<u8> = files.part_span(&self.codes, span.start / 2..span.end.div_ceil(2))?;
        let mut codes = high_nibbles_first(&bytes);
        codes.drain(..span.start % 2);
        codes.truncate(span.len());
        let scales = self.all_scales(files)?;
        let (columns, size) = (self.columns, self.size);
        let (group_of, n_groups, scales) = match columns.is_multiple_of(size) {
            true => {
                let row_span = span.start / size..span.end / size;
                let n_groups = columns / size;
                (groups(columns, size), n_groups, scales[row_span].to_vec())
            }
            // Blocks continue across rows, so each column has its own scale.
            false => {
                let each = span.clone().map(|i| scales[i / size]);
                ((0..columns as u32).collect(), columns, each.collect())
            }
        };
        let numbers = files.part_in_f32(&self.numbers)?;
        Ok(QuantizedRows {
            codes,
            columns: self.columns,
            values: Some(table(|code| numbers[usize::from(code & 15)])),
            group_of,
            n_groups,
            scales,
            zeros: Zeros::All(0.0),
            factor: 1.0,
        })
    }
}
