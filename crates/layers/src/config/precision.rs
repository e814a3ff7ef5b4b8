//! The number formats for packed weights.

use serde::{Deserialize, Serialize};

/// The number format in which a packed layer stores and multiplies its weights, or, in
/// [`ForwardContext::with_precision`](crate::ForwardContext::with_precision), in which a trainable layer multiplies.
/// Everything between the products is computed in f32, including the softmax in attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Precision {
    /// f32: the original layer's results up to rounding.
    #[default]
    F32,
    /// IEEE half precision for the weights, f32 for the rows that they are multiplied with and for attention: half
    /// the memory of [`Self::F32`], and the same bits if the weights are already in half precision. Other weights
    /// are rounded, with a relative error of at most 2⁻¹¹ (below 2⁻¹⁴ an absolute error of 2⁻²⁵). Packing refuses
    /// weights beyond ±65504.
    F16,
    /// bf16 for the weights and the rows that they are multiplied with: half the memory, and twice the speed if the
    /// CPU has an instruction for it. Attention also multiplies queries, keys, weights and values in bf16, and a
    /// cache stores keys and values in bf16. A product's error is about 2⁻⁹ times the typical size of its terms.
    Bf16,
    /// int8 for the weights and, quantized on the fly, for the rows that they are multiplied with: a quarter of the
    /// memory. Each group of 128 weights for an output has its own scale, and so has each group of 128 elements in a
    /// row. The error for a weight is at most 1/252 of its group's largest; the error for an element in a row is at
    /// most 1/508 of its group's range, zero included. Attention computes like with [`Self::Bf16`].
    Int8,
    /// 4-bit quantized values for the weights, in groups with a scale and a minimum in f16: 4 + 32 / group bits per
    /// weight, at most half the memory of [`Self::Int8`]. Packing searches for the scale and minimum with the least
    /// squared error. Rows are quantized on the fly, with a scale for each group. For normally distributed weights
    /// the error is 7.3 % of their deviation in groups of 32, 8.4 % in groups of 64, and 9.3 % in groups of 128.
    /// Packing refuses weights beyond ±65504. Attention computes like with [`Self::Bf16`].
    Int4 {
        /// The number of weights for an output that share a scale and a minimum.
        group: GroupSize,
    },
    /// A quantized file's values, packed unchanged: 2 to 6 or 8 bits, with the file's scales and zero points or
    /// minima. Weights equal the file's exactly, and take as much memory. Rows are quantized on the fly, with a
    /// scale for each group. Weights that the file does not quantize, and those quantized to a type without a packed form,
    /// are packed in bf16, f16 or f32: the first that represents all elements exactly.
    /// `LoadReport::not_as_stored` lists both. Attention computes like with
    /// [`Self::Bf16`].
    ///
    /// Only for checkpoints. A layer in memory returns an error, since it has no quantized values. So do files
    /// without quantized weights, or with quantized values that are not multiplied by a scale with an offset.
    AsStored,
}

impl Precision {
    /// [`Self::Int4`] in groups of the default size, 64.
    pub const INT4: Self = Self::Int4 {
        group: GroupSize::Of64,
    };
}

/// The number of consecutive weights for an output that share a scale and a minimum. Larger groups take less memory,
/// smaller groups have smaller errors. Set it in [`Precision::Int4`](crate::Precision::Int4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "usize", into = "usize")]
#[non_exhaustive]
pub enum GroupSize {
    /// 32 weights: 5 bits per weight in [`Precision::Int4`].
    Of32,
    /// 64 weights: 4.5 bits.
    #[default]
    Of64,
    /// 128 weights: 4.25 bits.
    Of128,
}

impl From<GroupSize> for usize {
    fn from(size: GroupSize) -> Self {
        match size {
            GroupSize::Of32 => 32,
            GroupSize::Of64 => 64,
            GroupSize::Of128 => 128,
        }
    }
}

impl TryFrom<usize> for GroupSize {
    type Error = String;

    /// # Errors
    /// If there is no such group size.
    fn try_from(size: usize) -> Result<Self, String> {
        match size {
            32 => Ok(Self::Of32),
            64 => Ok(Self::Of64),
            128 => Ok(Self::Of128),
            _ => Err(format!("groups of {size} weights: expected 32, 64 or 128")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json, to_value};

    #[test]
    fn a_precision_is_read_as_it_is_written_and_no_other_group_is() {
        for (precision, written) in [
            (Precision::Int8, json!("int8")),
            (Precision::INT4, json!({"int4": {"group": 64}})),
            (
                Precision::Int4 {
                    group: GroupSize::Of128,
                },
                json!({"int4": {"group": 128}}),
            ),
        ] {
            assert_eq!(to_value(precision).unwrap(), written);
            assert_eq!(from_value::<Precision>(written).unwrap(), precision);
        }
        let refused = from_value::<Precision>(json!({"int4": {"group": 48}}));
        let message = refused.unwrap_err().to_string();
        assert!(
            message.contains("groups of 48 weights: expected 32, 64 or 128"),
            "{message}"
        );
    }
}
