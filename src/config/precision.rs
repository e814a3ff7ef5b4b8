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
}
