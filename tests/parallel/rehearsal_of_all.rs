//! Repeats this program's tests as they would run on GPUs; see `shared/rehearsal.rs`.

use crate::rehearsal::rehearse;

#[test]
fn ranks_compute_the_same_as_on_cuda_and_metal() {
    let left_out = ["packed::", "mpi::", "same_bits::"];
    rehearse(&["cuda", "metal"].map(|backend| (backend, &left_out[..])));
}
