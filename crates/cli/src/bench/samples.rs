//! Times many runs.

use std::time::{Duration, Instant};

use anyhow::Result;
use candle_blocks::candle_core;

/// The smallest number of runs for a median.
const LEAST_SAMPLES: usize = 5;

/// A summary of many times, in milliseconds.
pub struct Samples {
    pub count: usize,
    pub median_ms: f64,
    pub min_ms: f64,
}

/// Warms up, then measures for `seconds`, and at least [`LEAST_SAMPLES`] times.
pub fn take<T>(seconds: f64, mut run: impl FnMut() -> candle_core::Result<T>) -> Result<Samples> {
    let mut time = || -> Result<Duration> {
        let start = Instant::now();
        let result = std::hint::black_box(run()?);
        let time = start.elapsed();
        drop(result);
        Ok(time)
    };
    let for_at_least = |seconds: f64, count: usize, time: &mut dyn FnMut() -> Result<Duration>| {
        let mut times = Vec::new();
        let start = Instant::now();
        while times.len() < count || start.elapsed().as_secs_f64() < seconds {
            times.push(time()?.as_secs_f64() * 1e3);
        }
        anyhow::Ok(times)
    };
    for_at_least(0.2 * seconds, 2, &mut time)?; // caches, clock, threads, pages
    let mut times = for_at_least(seconds, LEAST_SAMPLES, &mut time)?;
    times.sort_by(f64::total_cmp);
    Ok(Samples {
        count: times.len(),
        median_ms: median(&times),
        min_ms: times[0],
    })
}

/// Returns the median of values in ascending order.
fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted[middle]
    } else {
        (sorted[middle - 1] + sorted[middle]) / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_in_the_middle() {
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[1.0, 2.0, 7.0]), 2.0);
        assert_eq!(median(&[1.0, 2.0, 4.0, 9.0]), 3.0);
    }

    #[test]
    fn a_run_longer_than_the_time_is_still_measured_several_times() {
        let mut runs = 0;
        let samples = take(1e-6, || {
            runs += 1;
            std::thread::sleep(Duration::from_millis(2));
            Ok(())
        })
        .unwrap();
        assert_eq!(samples.count, LEAST_SAMPLES);
        assert!(runs > samples.count, "nothing was run to warm up");
        assert!(2.0 <= samples.min_ms && samples.min_ms <= samples.median_ms);
    }
}
