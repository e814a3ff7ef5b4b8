//! The number of threads, where the environment asks for far more than the machine has cores.

use candle_blocks::ops::n_threads;

use crate::output;

/// What candle and rayon read.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// Has rayon make no more threads than compute, and says so if the environment asks for more. rayon would make all of them,
/// and fail where the system does not have so many.
pub fn limit() {
    let asked = std::env::var(VARIABLE).ok();
    let asked: Option<usize> = asked.and_then(|number| number.parse().ok());
    let n = n_threads();
    if let Some(asked) = asked.filter(|&asked| asked > n) {
        output::warn(format_args!(
            "note: {VARIABLE} is {asked}; {n} threads compute, since more would wait for each other"
        ));
        // There is a pool already only if somebody made one before `main`.
        let _ = rayon::ThreadPoolBuilder::new()
            .num_threads(n)
            .build_global();
    }
}
