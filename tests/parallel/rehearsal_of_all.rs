//! All of this program once more as it would run on GPUs; see `shared/rehearsal.rs`.

use crate::rehearsal::{rehearse, rehearsed};

#[test]
fn ranks_compute_the_same_as_on_cuda_and_metal() {
    if rehearsed().is_some() {
        return;
    }
    for backend in ["cuda", "metal"] {
        rehearse(backend, &["packed::", "mpi::", "same_bits::"]);
    }
}
