//! Repeats this program's tests as they would run on a GPU; see `shared/rehearsal.rs`.

use crate::rehearsal::rehearse;

#[test]
#[cfg_attr(target_family = "wasm", ignore = "WASI starts no processes")]
fn layers_compute_the_same_as_on_cuda_and_on_metal() {
    let levels = "instruction_sets";
    // Tests that compute in f64, which Metal does not have.
    let f64s = ["properties", "ops::linear_of_views", "one_by_one", levels];
    rehearse(&[("cuda", &[levels]), ("metal", &f64s)]);
}
