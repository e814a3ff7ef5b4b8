//! Plain data that says what a layer is: sizes, activation, norm, placement. No tensors, no files.
//!
//! What a layer cannot do without is an argument of `new`; everything else has the default of
//! PyTorch's own module and a `with_…` method. [`BlockConfig::validate`] checks that the parts fit.

use crate::{Error, Result};

mod activation;
mod attention;
mod block;
mod feed_forward;
mod norm;
mod position;
mod precision;

pub use activation::Activation;
pub use attention::{AttentionBias, AttentionConfig, QueryKeyNorm, QueryKeyNormSpan, Visibility};
pub use block::{
    BlockConfig, NormPlacement, ParallelNorm, ResidualConfig, ResidualSource, StackConfig, Topology,
};
pub use feed_forward::{ExpertsConfig, FeedForwardConfig, FeedForwardForm, RoutingWeights};
pub use norm::{NormConfig, NormKind, NormWeight};
pub use position::{
    AlibiConfig, AlibiRounding, AlibiSlopes, Position, RelativeBiasConfig, RotaryConfig,
    RotaryPairing, RotaryScaling,
};
pub use precision::Precision;

fn positive(name: &str, value: usize) -> Result<()> {
    if value == 0 {
        return Err(Error::InvalidConfig(format!("{name} is 0")));
    }
    Ok(())
}

fn probability(name: &str, p: f64) -> Result<()> {
    if !(0.0..1.0).contains(&p) {
        return Err(Error::InvalidConfig(format!(
            "{name} is {p}; expected 0 <= p < 1"
        )));
    }
    Ok(())
}
