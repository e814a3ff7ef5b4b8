//! Quantizes texts' vectors, as sentence-transformers' `quantize_embeddings` does:
//! <https://github.com/huggingface/sentence-transformers/blob/v5.1.0/sentence_transformers/quantization.py>.

use candle_core::Tensor;

use crate::error::{Error, Result, from_name};
use crate::text::encoder::host;

/// A quantized vector's precision.
///
/// Parsed with sentence-transformers' names: `int8`, `uint8`, `binary` and `ubinary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VectorPrecision {
    /// A signed byte for each feature, from -128 for the least value in a range to 127 for the largest.
    Int8,
    /// A byte for each feature, from 0 to 255.
    Uint8,
    /// A bit for each feature, set if it is positive. Eight fill a byte, the first feature's highest, which is stored minus 128.
    Binary,
    /// A bit for each feature like [`Self::Binary`], whose bytes are not shifted.
    Ubinary,
}

/// Quantized vectors. [`VectorPrecision::quantize`](crate::text::VectorPrecision::quantize) returns them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantizedVectors {
    precision: VectorPrecision,
    width: usize,
    bytes: Vec<u8>,
}

impl QuantizedVectors {
    /// Returns the precision.
    pub fn precision(&self) -> VectorPrecision {
        self.precision
    }

    /// Returns a vector's number of bytes.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns all vectors' bytes, one after another; a signed one in two's complement.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns each vector's values, one for each byte.
    pub fn rows(&self) -> impl Iterator<Item = Vec<i16>> + '_ {
        let value = |&byte: &u8| match self.precision.is_signed() {
            true => i16::from(byte as i8),
            false => i16::from(byte),
        };
        let rows = self.bytes.chunks_exact(self.width.max(1));
        rows.map(move |row| row.iter().map(value).collect())
    }
}

from_name!(VectorPrecision, "precision",
    "int8" => Self::Int8,
    "uint8" => Self::Uint8,
    "binary" => Self::Binary,
    "ubinary" => Self::Ubinary,
);

impl VectorPrecision {
    /// Returns whether bytes are signed.
    pub fn is_signed(self) -> bool {
        matches!(self, Self::Int8 | Self::Binary)
    }

    /// Returns whether values are relative to ranges.
    pub fn reads_ranges(self) -> bool {
        matches!(self, Self::Int8 | Self::Uint8)
    }

    /// Returns each feature's least and largest value in vectors `[n, d]`, `[2, d]`: the ranges for [`Self::quantize`]. Many
    /// texts like those that will be compared give better ones than a few.
    ///
    /// # Errors
    /// If there are fewer than two vectors, which give no range.
    pub fn ranges(vectors: &Tensor) -> Result<Tensor> {
        let n = vectors.dims2()?.0;
        if n < 2 {
            let reason = format!(
                "found {n}, and at least 2 give ranges for int8 and uint8; calibrate with more vectors"
            );
            return Err(Error::input("vectors", reason));
        }
        Ok(Tensor::stack(&[vectors.min(0)?, vectors.max(0)?], 0)?)
    }

    /// Quantizes vectors `[n, d]`. `ranges` `[2, d]` has each feature's least and largest value; without it, the vectors give
    /// their own. Bits have no ranges.
    ///
    /// # Errors
    /// If the ranges have another shape or are given for bits, a value is not finite, or as in [`Self::ranges`].
    pub fn quantize(self, vectors: &Tensor, ranges: Option<&Tensor>) -> Result<QuantizedVectors> {
        let (n, d) = vectors.dims2()?;
        let values = host(vectors)?;
        if let Some(at) = values.iter().position(|value| !value.is_finite()) {
            let reason = format!("the value {} at {at} has no quantized one", values[at]);
            return Err(Error::input("vectors", reason));
        }
        let shift = if self.is_signed() { 128 } else { 0 };
        if !self.reads_ranges() {
            if ranges.is_some() {
                let reason = "have no effect on binary and ubinary; leave them out";
                return Err(Error::input("ranges", reason));
            }
            let pack = |features: &[f32]| {
                let bit = |(i, &value): (usize, &f32)| u8::from(value > 0.0) << (7 - i);
                let byte: u8 = features.iter().enumerate().map(bit).sum();
                byte.wrapping_sub(shift)
            };
            let rows = values.chunks_exact(d.max(1));
            let bytes = rows.flat_map(|row| row.chunks(8)).map(pack).collect();
            return Ok(QuantizedVectors {
                precision: self,
                width: d.div_ceil(8),
                bytes,
            });
        }
        let own;
        let ranges = match ranges {
            Some(ranges) => ranges,
            None => {
                own = Self::ranges(vectors)?;
                &own
            }
        };
        if ranges.dims() != [2, d] {
            let reason = format!("found {:?}, expected [2, {d}]", ranges.dims());
            return Err(Error::input("ranges", reason));
        }
        let ranges = host(ranges)?;
        if ranges.iter().any(|value| !value.is_finite()) {
            return Err(Error::input("ranges", "have a value that is not finite"));
        }
        let (least, most) = ranges.split_at(d);
        // In f32, as NumPy computes it: a value at the border of two steps must fall on the same side.
        let quantized = |(i, &value): (usize, &f32)| {
            let (least, most) = (least[i % d], most[i % d]);
            let step = match (most - least) / 255.0 {
                0.0 => 1.0,
                step => step,
            };
            let place = ((value - least) / step).floor().clamp(0.0, 255.0);
            (place as u8).wrapping_sub(shift)
        };
        let bytes = values.iter().enumerate().map(quantized).collect();
        debug_assert_eq!(values.len(), n * d);
        Ok(QuantizedVectors {
            precision: self,
            width: d,
            bytes,
        })
    }
}
