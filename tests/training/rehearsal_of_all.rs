//! Repeats this program's tests as they would run on a GPU; see `shared/rehearsal.rs`.

use crate::rehearsal::rehearse;

#[test]
fn a_training_computes_the_same_as_on_cuda_and_on_metal() {
    // Fresh parameters are drawn on the host, whatever the device.
    rehearse(&["cuda", "metal"].map(|backend| (backend, &["initialization"][..])));
}
