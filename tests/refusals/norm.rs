//! A norm for tests with misfitting parts.

use candle_blocks::{Norm, NormConfig};

use crate::small::numbers;

/// Returns an RMS norm for rows with this width.
pub fn norm(width: usize) -> Norm {
    Norm::from_parts(
        numbers(&[width], 1),
        None,
        NormConfig::rms_norm(width, 1e-6),
    )
    .unwrap()
}
