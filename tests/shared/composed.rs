//! Layers that are composed of candle's operations, as on a GPU.

use crate::{device::device, rehearsal::rehearsed};

/// How much of its bound a gradient may use where layers are composed of candle's operations: they sum in f32 what the kernels
/// sum in f64, and round a product before its bias is added.
const COMPOSED: f64 = 2.0;

/// How much of its bound any gradient may use.
pub fn of_any() -> f64 {
    match rehearsed().is_some() || !device().is_cpu() {
        true => COMPOSED,
        false => 1.0,
    }
}
