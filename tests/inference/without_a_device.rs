//! Every test here opens the device under test, or says why it does not; see `shared/absent.rs`.

use crate::absent::assert_none_passes;

#[test]
fn no_test_passes_without_a_device() {
    let rehearsal = "rehearsal_of_all::a_cached_pass_computes_the_same_as_on_cuda";
    assert_none_passes(
        "without_a_device::no_test_passes_without_a_device",
        &[
            (rehearsal, "starts this program with the CPU as its device"),
            (
                "recurrent::f32_states_stay_near_those_in_f64_over_many_positions",
                "f64 on the CPU is the reference",
            ),
        ],
    );
}
