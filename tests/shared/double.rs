//! f64, which some devices lack.

use crate::{device::device, rehearsal::rehearsed, weights::left_out};

/// Whether the device under test computes in f64. Where it does not, says that `what` is left out.
pub fn has_f64(what: &str) -> bool {
    let has_f64 = !device().is_metal() && rehearsed().as_deref() != Some("metal");
    if !has_f64 {
        left_out(&format!("{what}: the device has no f64"));
    }
    has_f64
}
