//! Layers that are composed of candle's operations, as on a GPU.

use crate::{device::device, rehearsal::rehearsed};

/// The share of its tolerance that a gradient may use if layers are composed of candle's operations. They sum in f32 what
/// the kernels sum in f64, and round a product before adding its bias.
const COMPOSED: f64 = 2.0;

/// Returns the share of its tolerance that any gradient may use.
pub fn of_any() -> f64 {
    match rehearsed().is_some() || !device().is_cpu() {
        true => COMPOSED,
        false => 1.0,
    }
}
