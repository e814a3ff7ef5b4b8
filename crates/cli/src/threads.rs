//! Limits the number of threads if the environment requests far more than the machine has cores.

use candle_blocks::ops::n_threads;

use crate::output;

/// The environment variable that candle and rayon read.
const VARIABLE: &str = "RAYON_NUM_THREADS";

/// Lets rayon start no more threads than compute, and prints a note if the environment requests more. rayon would start all
/// of them, and fail if the system refuses.
pub fn limit() {
    let requested = std::env::var(VARIABLE).ok();
    let requested: Option<usize> = requested.and_then(|number| number.parse().ok());
    let n = n_threads();
    if let Some(requested) = requested.filter(|&requested| requested > n) {
        output::warn(format_args!(
            "note: {VARIABLE} is {requested}; {n} threads compute, since more would wait for each other"
        ));
        // There is a pool already only if somebody made one before `main`.
        let _ = rayon::ThreadPoolBuilder::new()
            .num_threads(n)
            .build_global();
    }
}
