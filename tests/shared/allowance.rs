//! Fixtures that are harder on us than others.

use crate::{committed::Committed, composed::of_any};

/// Returns the share of the tolerance that a stack's f32 gradients may use. In these fixtures PyTorch's error happens to be
/// smaller than usual: on other inputs ours is 0.8 of it, as in other families (crates/layers/src/verify/tolerance.rs).
pub fn gradient_allowance(stack: &Committed) -> f64 {
    // The second only with the portable kernels.
    match stack.name.as_str() {
        _ if of_any() > 1.0 => of_any(),
        "families/gemma3_text" | "families/modernbert" => 2.0,
        _ => 1.0,
    }
}
