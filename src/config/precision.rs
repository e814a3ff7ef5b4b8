//! How packed weights are stored.

use serde::{Deserialize, Serialize};

/// The number format in which a packed layer stores and multiplies its weights. What lies between products
/// is f32 in each, the softmax of attention included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Precision {
    /// f32, the numbers of the layer that is packed within its own rounding.
    F32,
    /// bf16 for weights and the rows they are multiplied with: half the memory, and twice the speed where the CPU has
    /// an instruction for it. Attention multiplies queries, keys, weights and values in bf16 too, and a cache keeps its
    /// keys and values so. Each product errs by some 2⁻⁹ of the typical size of its terms.
    Bf16,
    /// int8 for weights, with a scale for each output, and for the rows they are multiplied with, with a scale for
    /// each 128 columns, taken when the row comes: a quarter of the memory. Each number is rounded to 1/254 of the
    /// largest that shares its scale. Attention is that of [`Self::Bf16`].
    Int8,
}
