//! The number of threads that candle is set to.

use std::sync::OnceLock;

use candle_core::utils::get_num_threads;

/// candle's [`get_num_threads`]: the number in `RAYON_NUM_THREADS`, or else that of the cores. candle counts
/// cores anew at every call, by reading `/proc/cpuinfo`, which takes longer than a small product; here they are
/// counted once.
pub(crate) fn threads() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    let asked = std::env::var("RAYON_NUM_THREADS").ok();
    let asked = asked.and_then(|number| number.parse().ok());
    asked
        .filter(|&number: &usize| number > 0)
        .unwrap_or_else(|| *CORES.get_or_init(get_num_threads))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_candles() {
        let candles = get_num_threads();
        assert_eq!((threads(), threads()), (candles, candles));
    }
}
