//! Repeats this program's tests as they would run on a GPU; see `shared/rehearsal.rs`.

use crate::rehearsal::rehearse;

#[test]
fn a_cached_pass_computes_the_same_as_on_cuda() {
    rehearse(&[("cuda", &[])]);
}
