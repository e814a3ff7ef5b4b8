//! Configures layers that a single model family has; `layers/own` holds them.

mod altup;
mod gemma;
mod layer_input;
mod xielu;

pub use altup::AltUpConfig;
pub use gemma::GemmaConfig;
pub use layer_input::{LayerInputConfig, LayerInputTable};
pub use xielu::XieluConfig;

use super::{Activation, finite, positive, size};
