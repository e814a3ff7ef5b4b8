//! How packed weights are stored.

use serde::{Deserialize, Serialize};

/// The number format in which a packed layer stores and multiplies its weights. What lies between products
/// is f32 in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Precision {
    /// f32, the numbers of the layer that is packed within its own rounding.
    F32,
}
