//! Results that are computed in two ways with the same operations.

use std::fmt::Debug;

use candle_blocks::candle_core::Tensor;

use crate::{device::device, numbers::numbers};

/// Asserts that two results are the same: on the CPU to the last bit. A GPU's library may sum in another order; there,
/// values may differ by 1e-5 of the largest.
#[track_caller]
pub fn assert_same(ours: &Tensor, theirs: &Tensor, what: impl Debug) {
    assert_eq!(ours.dims(), theirs.dims(), "{what:?}");
    let (ours, theirs) = (numbers(ours), numbers(theirs));
    let largest = theirs.iter().fold(0f64, |most, x| most.max(x.abs()));
    let is_cpu = device().is_cpu();
    for (i, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        let is_near = !is_cpu && (ours - theirs).abs() <= 1e-5 * largest;
        let is_same = ours.to_bits() == theirs.to_bits() || is_near;
        assert!(is_same, "{what:?}, element {i}: {ours:e} and {theirs:e}");
    }
}
