//! How long work takes, for the measurements that tests are.

use std::time::Instant;

/// The least of several times, in seconds: what another process takes away only adds to one.
pub fn least(times: usize, mut work: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    };
    (0..times).map(time).fold(f64::INFINITY, f64::min)
}
