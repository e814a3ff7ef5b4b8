//! Timing for the tests that are measurements.

use std::time::Instant;

/// The least of several run times, in seconds: interference by other processes only ever adds to one.
pub fn least(times: usize, mut work: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..times).map(time).fold(f64::INFINITY, f64::min)
}
