//! Elementwise activations, each with its slope.

mod apply;
mod compiled;
mod decay_complement;
mod function;
mod pieces;
pub(crate) mod smooth;
mod straight;
mod xielu;

pub(crate) use apply::Computed;
pub use function::ActivationFunction;
pub use smooth::{LAPLACE_CENTER, LAPLACE_WIDTH};
pub use xielu::Xielu;

#[cfg(test)]
mod tests;
