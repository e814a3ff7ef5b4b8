//! Timing for tests that are measurements.

use std::time::Instant;

/// Returns the minimum run time in seconds. Interference by other processes only adds to a run time.
pub fn least(times: usize, mut work: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..times).map(time).fold(f64::INFINITY, f64::min)
}
