//! All of this program once more as it would run on a GPU; see `shared/rehearsal.rs`.

use crate::rehearsal::{FUSED, rehearse, rehearsed};

#[test]
fn a_training_computes_the_same_as_on_cuda_and_on_metal() {
    if rehearsed().is_some() {
        return;
    }
    // Fresh parameters are drawn on the host, whatever the device.
    rehearse("cuda", &["initialization"]);
    rehearse(FUSED, &["initialization"]);
    rehearse("metal", &["initialization"]);
}
