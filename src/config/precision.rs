//! The number formats of packed weights.

use serde::{Deserialize, Serialize};

/// The number format in which a packed layer stores and multiplies its weights; or, of
/// [`ForwardContext::with_precision`](crate::ForwardContext::with_precision), in which a trainable layer multiplies. Everything
/// between the products is computed in f32, including the softmax of attention.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Precision {
    /// f32: the results of the original layer up to rounding.
    #[default]
    F32,
    /// IEEE half precision for the weights, f32 for the rows that they are multiplied with and for attention: half the
    /// memory of [`Self::F32`], and its bits wherever the weights are half precision already. Other weights are rounded,
    /// by 2⁻¹¹ of their size at most (those below 2⁻¹⁴ by 2⁻²⁵); what is beyond ±65504 is refused where it is packed.
    F16,
    /// bf16 for the weights and the rows that they are multiplied with: half the memory, and twice the speed where the
    /// CPU has an instruction for it. Attention also multiplies queries, keys, weights and values in bf16, and a cache
    /// stores its keys and values in it. The error of a product is about 2⁻⁹ of the typical size of its terms.
    Bf16,
    /// int8 for the weights and, quantised on the fly, for the rows that they are multiplied with: a quarter of the
    /// memory. Each group of 128 weights of an output, and each group of 128 numbers of a row, has its own scale. The error
    /// of a weight is at most 1/252 of the largest in its group; that of a number in a row at most 1/508 of the span of its
    /// group, zero included. Attention computes as with [`Self::Bf16`].
    Int8,
    /// Codes of 4 bits for the weights, in groups that each have a scale and a minimum in f16: 4 + 32 / group bits for a weight,
    /// half the memory of [`Self::Int8`] or less. Scale and minimum are searched for the least squared error. A row is
    /// quantised on the fly, with a scale for each group of its numbers. Normally distributed weights err by
    /// 7.3 % of their deviation in groups of 32, by 8.4 % in those of 64, and by 9.3 % in those of 128. What is beyond
    /// ±65504 is refused where it is packed; attention computes as with [`Self::Bf16`].
    Int4 {
        /// How many weights of an output share a scale and a minimum.
        group: GroupSize,
    },
    /// The codes of a quantised file, packed as they are: of 4, 5, 6 or 8 bits, with the file's own scales and zero points
    /// or minima, so that weights are exactly the file's, at its size. Rows are quantised on the fly, with a scale for each
    /// group of their numbers. What is not quantised in the file is packed in bf16, f16 or f32, the first that holds
    /// all numbers of a weight; attention computes as with [`Self::Bf16`].
    ///
    /// For checkpoints: a layer in memory has no codes, and refuses it. So do files whose weights are not quantised, or in
    /// ways that are no scale times a code with an offset.
    AsStored,
}

impl Precision {
    /// [`Self::Int4`] in groups of the usual size, 64.
    pub const INT4: Self = Self::Int4 {
        group: GroupSize::Of64,
    };
}

/// How many consecutive weights of an output share what is stored beside their codes: of more, fewer bits; of fewer, smaller
/// errors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "usize", into = "usize")]
#[non_exhaustive]
pub enum GroupSize {
    /// 32 weights, and so 5 bits for each of them in [`Precision::Int4`].
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
    /// If there are no groups of this size.
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
