//! f64, which some devices lack.

use crate::{device::device, rehearsal::rehearsed, weights::left_out};

/// Returns whether the device under test supports f64. If not, prints that `what` is skipped.
pub fn has_f64(what: &str) -> bool {
    let has_f64 = !device().is_metal() && rehearsed().as_deref() != Some("metal");
    if !has_f64 {
        left_out(&format!("{what}: the device has no f64"));
    }
    has_f64
}
