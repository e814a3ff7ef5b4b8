//! All of this program once more as it would run on a GPU; see `shared/rehearsal.rs`.

use crate::rehearsal::{FUSED, rehearse, rehearsed};

#[test]
fn layers_compute_the_same_as_on_cuda_and_on_metal() {
    if rehearsed().is_some() {
        return;
    }
    rehearse("cuda", &["instruction_sets"]);
    rehearse(FUSED, &["instruction_sets"]);
    // What computes in f64, which Metal lacks.
    let f64s = [
        "properties",
        "ops::linear_of_views",
        "one_by_one",
        "instruction_sets",
    ];
    rehearse("metal", &f64s);
}
