//! All of this program once more as it would run on a GPU; see `shared/rehearsal.rs`.

use crate::rehearsal::{FUSED, rehearse, rehearsed};

#[test]
fn a_cached_pass_computes_the_same_as_on_cuda() {
    if rehearsed().is_some() {
        return;
    }
    rehearse("cuda", &[]);
    rehearse(FUSED, &[]);
}
