//! BitNet's ternary weights: -1, 0 or 1 for each weight, and one scale for the whole matrix.
//!
//! transformers' `BitLinear` and `AutoBitLinear`, which round activations to 8 bits too:
//! <https://github.com/huggingface/transformers/blob/v5.23.0/src/transformers/integrations/bitnet.py>

use std::ops::Range;
use std::sync::OnceLock;

use safetensors::Dtype;

use super::rows::{CodeKind, QuantizedMatrix, groups};
use super::{DequantizedMatrix, QuantizedModule};
use crate::config_json::ConfigJson;
use crate::tensors::{StoredTensor, TensorFiles};
use candle_blocks_base::Result;
use candle_blocks_kernels::storage::bits::{append_pairs, rounded_to_ternary, ternary};
use candle_blocks_kernels::storage::numbers::sum_of_magnitudes;
use candle_blocks_kernels::storage::{QuantizedRows, Zeros};

/// The source of the scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BitNet {
    /// `BitLinear`: ternary values are divided by `weight_scale`.
    Divided,
    /// `AutoBitLinear`, offline: ternary values, packed or not, are multiplied by `weight_scale`.
    Multiplied,
    /// `AutoBitLinear`, online: the weights are whole, and transformers rounds them in every forward pass.
    Online,
}

/// A matrix of ternary values.
#[derive(Debug)]
struct Ternary {
    of: BitNet,
    /// Four values of two bits in a byte, `[rows / 4, columns]`, or floats `[rows, columns]`.
    weights: StoredTensor,
    /// `weight_scale`, unless it is computed from the weights.
    scale: Option<StoredTensor>,
    /// The mean absolute weight, once known.
    mean: OnceLock<f32>,
}

/// Values in a byte.
const PER_BYTE: usize = 4;
/// transformers' least mean absolute weight.
const LEAST_MEAN: f32 = 1e-5;
/// Rows whose absolute values are summed at a time.
const SUMMED_ROWS: usize = 256;

impl BitNet {
    /// Reads `linear_class` and `quantization_mode`.
    ///
    /// # Errors
    /// If linear layers have norms of their own, or a class or a mode is unknown.
    pub fn new(found: &ConfigJson) -> Result<Self> {
        found.only("use_rms_norm", &[false.into()])?;
        found.only(
            "linear_class",
            &["bitlinear".into(), "autobitlinear".into()],
        )?;
        found.only("quantization_mode", &["offline".into(), "online".into()])?;
        let class = found.text(&["linear_class"])?;
        let mode = found.text(&["quantization_mode"])?;
        // A `BitLinear` has no modes.
        let of = match (class.as_deref(), mode.as_deref()) {
            (Some("autobitlinear"), Some("online")) => Self::Online,
            (Some("autobitlinear"), _) => Self::Multiplied,
            _ => Self::Divided,
        };
        if of == Self::Online {
            // With a list, transformers rounds the output layer too, unless the list has it.
            found.only("modules_to_not_convert", &[vec!["lm_head"].into()])?;
        }
        Ok(of)
    }

    /// Returns a module's matrix; `None` if it is not quantized.
    pub fn matrix(self, module: &mut QuantizedModule) -> Result<Option<DequantizedMatrix>> {
        if self == Self::Online && !is_rounded(module)? {
            return Ok(None);
        }
        let weights = module.needs("weight")?;
        let scale = match self {
            Self::Online => None,
            Self::Divided | Self::Multiplied => Some(module.needs("weight_scale")?),
        };
        if let Some(scale) = &scale
            && scale.info.shape.iter().product::<usize>() != 1
        {
            let found = &scale.info.shape;
            return Err(scale.error(format!("it has shape {found:?}, expected one number")));
        }
        let dtypes: &[Dtype] = match self {
            Self::Divided => &[Dtype::U8],
            Self::Multiplied => &[Dtype::U8, Dtype::F32, Dtype::F16, Dtype::BF16],
            Self::Online => &[Dtype::F32, Dtype::F16, Dtype::BF16],
        };
        weights.check_dtype(dtypes)?;
        if self == Self::Multiplied && module.has("bias") {
            return Err(weights.error(
                "it has a bias, which transformers' AutoBitLinear multiplies by weight_scale too; that is not supported",
            ));
        }
        let (n, columns) = weights.dims2()?;
        let n_rows = match weights.info.dtype {
            Dtype::U8 => n.saturating_mul(PER_BYTE),
            _ => n,
        };
        let parts = scale.iter().chain([&weights]).cloned().collect();
        let stored = Ternary {
            of: self,
            weights,
            scale,
            mean: OnceLock::new(),
        };
        Ok(Some(DequantizedMatrix::new(
            parts,
            vec![n_rows, columns],
            stored,
        )))
    }
}

/// Returns whether transformers rounds a module's weight in every forward pass: that of each linear layer but the output
/// layer.
///
/// # Errors
/// If the name does not tell whether the module is a linear layer.
fn is_rounded(module: &mut QuantizedModule) -> Result<bool> {
    let name = format!("{}weight", module.prefix);
    let info = module.files.info(&name);
    if info.is_none_or(|info| info.shape.len() != 2) {
        return Ok(false);
    }
    let ends_with = |end: &str| module.prefix.ends_with(end);
    if ends_with("embed_tokens.") || ends_with("lm_head.") {
        return Ok(false);
    }
    if ends_with("_proj.") {
        return Ok(true);
    }
    let reason = "quantization_mode \"online\" rounds the weights of linear layers, and the name does not tell whether this is \
                  one: only names that end with _proj, embed_tokens and lm_head are known";
    Err(candle_blocks_base::Error::input(&name, reason))
}

impl Ternary {
    /// Returns the number by which all ternary values are multiplied.
    fn scale(&self, files: &TensorFiles) -> Result<f32> {
        let Some(scale) = &self.scale else {
            // As transformers, which divides by 1 / mean.
            return Ok(1.0 / (1.0 / self.mean(files)?));
        };
        let scale = files.part_in_f32(scale)?[0];
        Ok(match self.of {
            BitNet::Divided => 1.0 / scale,
            BitNet::Multiplied | BitNet::Online => scale,
        })
    }

    /// Returns the mean absolute weight.
    fn mean(&self, files: &TensorFiles) -> Result<f32> {
        if let Some(mean) = self.mean.get() {
            return Ok(*mean);
        }
        let (n_rows, columns) = self.weights.dims2()?;
        let mut sum = 0.0;
        for start in (0..n_rows).step_by(SUMMED_ROWS) {
            let rows = start..n_rows.min(start + SUMMED_ROWS);
            let weights = files.part_rows(&self.weights, rows)?;
            sum += sum_of_magnitudes(&weights);
        }
        let mean = (sum / (n_rows * columns).max(1) as f64) as f32;
        Ok(*self.mean.get_or_init(|| mean.max(LEAST_MEAN)))
    }

    /// Returns rows of values, each one more than its ternary value.
    fn row_codes(&self, files: &TensorFiles, rows: Range<usize>) -> Result<Vec<u8>> {
        let (n, columns) = self.weights.dims2()?;
        if self.weights.info.dtype == Dtype::U8 {
            let mut codes = Vec::with_capacity(rows.len() * columns);
            for part in 0..PER_BYTE {
                // The rows of one place in the bytes.
                let here = |row: usize| row.clamp(part * n, (part + 1) * n) - part * n;
                let span = here(rows.start) * columns..here(rows.end) * columns;
                let bytes: Vec<u8> = files.part_span(&self.weights, span)?;
                append_pairs(&bytes, part, &mut codes);
            }
            return Ok(codes);
        }
        let weights = files.part_rows(&self.weights, rows)?;
        if self.of == BitNet::Online {
            let inverse = 1.0 / self.mean(files)?;
            return Ok(rounded_to_ternary(&weights, inverse));
        }
        ternary(&weights).map_err(|other| {
            self.weights.error(format!(
                "it holds {other} beside weight_scale, expected -1, 0 or 1"
            ))
        })
    }
}

impl QuantizedMatrix for Ternary {
    fn kind(&self) -> CodeKind {
        CodeKind::Whole { bits: 2 }
    }

    fn scale_dtypes(&self) -> [Dtype; 2] {
        match (self.of, &self.scale) {
            (BitNet::Multiplied, Some(scale)) => [scale.info.dtype; 2],
            _ => [Dtype::F32; 2],
        }
    }

    fn codes(&self) -> &StoredTensor {
        &self.weights
    }

    fn rows(&self, files: &TensorFiles, rows: Range<usize>) -> Result<QuantizedRows> {
        let (_, columns) = self.weights.dims2()?;
        Ok(QuantizedRows {
            scales: vec![self.scale(files)?; rows.len()],
            codes: self.row_codes(files, rows)?,
            columns,
            values: None,
            group_of: groups(columns, columns),
            n_groups: 1,
            zeros: Zeros::All(1.0),
            factor: 1.0,
        })
    }
}
