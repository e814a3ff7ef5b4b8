//! compressed-tensors, which llm-compressor writes; FP8 formats with separate scales; and MXFP4 experts.

use safetensors::Dtype;

use super::gptq::WORDS;
use super::grouped::{CodePacking, Global, Grouped, Scales, ZeroSource};
use super::rows::group_size;
use super::{DequantizedMatrix, QuantizedModule};
use crate::tensors::StoredTensor;
use candle_blocks_base::Result;
use candle_blocks_kernels::storage::bits::n_words;

/// The groups in a `quantization_config`, each of which applies to some modules; the tensors' shapes tell which.
#[derive(Clone, Debug, Default)]
pub(super) struct Schemes {
    pub bits: Vec<usize>,
    pub group_sizes: Vec<usize>,
    /// Rows and columns of a block with one scale.
    pub blocks: Vec<(usize, usize)>,
    /// Set if a tensor may name the columns' groups. Only compressed-tensors has such tensors.
    pub orders_columns: bool,
}

/// Returns a module's matrix in one of compressed-tensors' formats, or in FP8.
pub(super) fn matrix(
    module: &mut QuantizedModule,
    schemes: &Schemes,
) -> Result<Option<DequantizedMatrix>> {
    if !schemes.orders_columns
        && let Some(index) = module.take("weight_g_idx")
    {
        return Err(index.error(
            "it gives each column a group as in compressed-tensors' files, and is unknown beside weights of this quant_method",
        ));
    }
    if let Some(codes) = module.take("weight_packed") {
        return match codes.info.dtype {
            Dtype::U8 => two_in_a_byte(module, codes).map(Some),
            _ => in_words(module, codes, schemes).map(Some),
        };
    }
    for scales in ["weight_scale", "weight_scale_inv"] {
        if module.has(scales) && module.dtype("weight").is_some_and(|dtype| !is_float(dtype)) {
            let (codes, scales) = (module.needs("weight")?, module.needs(scales)?);
            return match (codes.info.dtype, module.take("weight_scale_2")) {
                (Dtype::U8, Some(global)) => {
                    nvfp4(module, codes, scales, Global::Times(global)).map(Some)
                }
                (_, global) => bytes(module, codes, scales, schemes, global).map(Some),
            };
        }
    }
    Ok(None)
}

fn is_float(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16)
}

/// Returns a matrix with a byte for every weight, an integer or E4M3.
fn bytes(
    module: &mut QuantizedModule,
    codes: StoredTensor,
    scales: StoredTensor,
    schemes: &Schemes,
    unknown: Option<StoredTensor>,
) -> Result<DequantizedMatrix> {
    if let Some(unknown) = unknown {
        return Err(unknown.error("it is unknown beside 8-bit weights"));
    }
    codes.check_dtype(&[Dtype::I8, Dtype::F8_E4M3])?;
    let (n_rows, columns) = codes.dims2()?;
    let scales = scales_of(scales, (n_rows, columns), schemes)?;
    let (packing, zero) = match codes.info.dtype {
        Dtype::I8 => (CodePacking::Int8, 128.0),
        _ => (CodePacking::E4m3, 0.0),
    };
    Grouped::new(codes, packing, (n_rows, columns), scales)
        .with_zeros(ZeroSource::All(zero))
        .with_companions(module)?
        .matrix()
}

/// Returns scales for the whole matrix, for rows, for groups in a row, or for blocks.
fn scales_of(
    part: StoredTensor,
    (n_rows, columns): (usize, usize),
    schemes: &Schemes,
) -> Result<Scales> {
    let shape = part.info.shape.clone();
    let (n_groups, rows, columns) = match shape[..] {
        [] | [1] | [1, 1] if n_rows != 1 || shape.len() < 2 => (1, n_rows.max(1), columns),
        [n] if n == n_rows => (1, 1, columns),
        [n, n_groups] if n == n_rows => {
            let size = group_size(&part, columns, n_groups, &schemes.group_sizes)?;
            (n_groups, 1, size)
        }
        [blocks, n_groups] => {
            let fits = |(rows, size): &&(usize, usize)| {
                *rows > 0
                    && *size > 0
                    && n_rows.div_ceil(*rows) == blocks
                    && columns.div_ceil(*size) == n_groups
            };
            let Some(&(rows, size)) = schemes.blocks.iter().find(fits) else {
                return Err(part.error(format!(
                    "its shape is {shape:?} for a weight of [{n_rows}, {columns}], which matches \
                     no block size in the configuration (weight_block_size or block_structure: \
                     {:?})",
                    schemes.blocks
                )));
            };
            (n_groups, rows, size)
        }
        _ => {
            return Err(part.error(format!(
                "its shape is {shape:?}, expected a scale for a weight of [{n_rows}, {columns}], for its rows, groups or blocks"
            )));
        }
    };
    Ok(Scales {
        part,
        n_groups,
        rows,
        columns: columns.max(1),
    })
}

/// Returns a matrix with integers of two to eight bits in bit streams along the rows.
fn in_words(
    module: &mut QuantizedModule,
    codes: StoredTensor,
    schemes: &Schemes,
) -> Result<DequantizedMatrix> {
    codes.check_dtype(&WORDS)?;
    let (scales, shape) = (module.needs("weight_scale")?, module.needs("weight_shape")?);
    shape.check_dtype(&[Dtype::I64, Dtype::I32])?;
    let sizes: Vec<i64> = match shape.info.dtype {
        Dtype::I64 => module.files.part(&shape)?,
        _ => module
            .files
            .part::<i32>(&shape)?
            .into_iter()
            .map(i64::from)
            .collect(),
    };
    let (n_rows, n_words_of_row) = codes.dims2()?;
    let columns = match sizes[..] {
        [rows, columns] if usize::try_from(rows) == Ok(n_rows) => usize::try_from(columns).ok(),
        _ => None,
    };
    let fits = |bits: &usize| {
        (2..=8).contains(bits) && columns.is_some_and(|n| n_words(n, *bits) == Some(n_words_of_row))
    };
    let (Some(columns), Some(bits)) = (columns, schemes.bits.iter().copied().find(fits)) else {
        return Err(shape.error(format!(
            "it contains {sizes:?}, which does not match {:?}-bit values (num_bits) in {n_rows} \
             rows of {n_words_of_row} words",
            schemes.bits
        )));
    };
    let scales = scales_of(scales, (n_rows, columns), schemes)?;
    let packing = CodePacking::Words { bits };
    Grouped::new(codes, packing, (n_rows, columns), scales)
        .with_zeros(ZeroSource::All((1 << (bits - 1)) as f32))
        .with_companions(module)?
        .matrix()
}

/// Returns an NVFP4 or MXFP4 matrix: E2M1 with a scale for 16 or 32 columns.
fn two_in_a_byte(module: &mut QuantizedModule, codes: StoredTensor) -> Result<DequantizedMatrix> {
    let scales = module.needs("weight_scale")?;
    match module.take("weight_global_scale") {
        Some(global) => nvfp4(module, codes, scales, Global::Over(global)),
        None => {
            scales.check_dtype(&[Dtype::U8, Dtype::F8_E8M0])?;
            let stored = e2m1(codes, scales, 32)?;
            stored.with_companions(module)?.matrix()
        }
    }
}

fn nvfp4(
    module: &mut QuantizedModule,
    codes: StoredTensor,
    scales: StoredTensor,
    global: Global,
) -> Result<DequantizedMatrix> {
    scales.check_dtype(&[Dtype::F8_E4M3])?;
    let mut stored = e2m1(codes, scales, 16)?;
    stored.global = Some(global);
    stored.with_companions(module)?.matrix()
}

fn e2m1(codes: StoredTensor, scales: StoredTensor, size: usize) -> Result<Grouped> {
    let (n_rows, n_bytes) = codes.dims2()?;
    let columns = 2 * n_bytes;
    let n_groups = columns.div_ceil(size);
    scales.check_shape(&[n_rows, n_groups])?;
    let scales = Scales {
        part: scales,
        n_groups,
        rows: 1,
        columns: size,
    };
    Ok(Grouped::new(
        codes,
        CodePacking::E2m1,
        (n_rows, columns),
        scales,
    ))
}

/// Returns gpt-oss's experts: `[experts, rows, groups, 16]` bytes, with an exponent for every group of 32.
pub(super) fn mxfp4_experts(
    codes: StoredTensor,
    scales: StoredTensor,
) -> Result<DequantizedMatrix> {
    codes.check_dtype(&[Dtype::U8])?;
    scales.check_dtype(&[Dtype::U8, Dtype::F8_E8M0])?;
    let [experts, rows, n_groups, 16] = codes.info.shape[..] else {
        let found = &codes.info.shape;
        return Err(codes.error(format!(
            "it has shape {found:?}, expected [experts, rows, groups, 16]"
        )));
    };
    scales.check_shape(&[experts, rows, n_groups])?;
    let scales = Scales {
        part: scales,
        n_groups,
        rows: 1,
        columns: 32,
    };
    let columns = 32 * n_groups;
    let mut stored = Grouped::new(codes, CodePacking::E2m1, (experts * rows, columns), scales);
    stored.rows_of_item = rows;
    let mut matrix = stored.matrix()?;
    matrix.shape = vec![experts, rows, columns];
    Ok(matrix)
}

impl Grouped {
    /// Makes a matrix without zero points.
    pub fn new(
        codes: StoredTensor,
        packing: CodePacking,
        (n_rows, columns): (usize, usize),
        scales: Scales,
    ) -> Self {
        Self {
            codes,
            packing,
            n_rows,
            columns,
            scales,
            zeros: ZeroSource::All(0.0),
            index: None,
            global: None,
            factor: 1.0,
            rows_of_item: 1,
        }
    }

    pub fn with_zeros(self, zeros: ZeroSource) -> Self {
        Self { zeros, ..self }
    }

    pub fn matrix(self) -> Result<DequantizedMatrix> {
        let zeros = match &self.zeros {
            ZeroSource::All(_) => None,
            ZeroSource::Bytes { part, .. }
            | ZeroSource::Words { part, .. }
            | ZeroSource::Behind(part) => Some(part),
        };
        let parts = [
            Some(&self.codes),
            Some(&self.scales.part),
            zeros,
            self.index.as_ref(),
        ];
        let parts = parts.into_iter().flatten().cloned().collect();
        let shape = vec![self.n_rows, self.columns];
        Ok(DequantizedMatrix::new(parts, shape, self))
    }
}
