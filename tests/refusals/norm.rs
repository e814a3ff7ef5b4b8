//! A norm that a misfit is made of.

use candle_blocks::{Norm, NormConfig};

use crate::small::numbers;

/// A root mean square norm of rows of a width.
pub fn norm(width: usize) -> Norm {
    Norm::from_parts(
        numbers(&[width], 1),
        None,
        NormConfig::rms_norm(width, 1e-6),
    )
    .unwrap()
}
