//! Row-wise LayerNorm and RMSNorm, forward and backward.

mod backward;
mod forward;
pub(crate) mod kind;

pub use kind::{Gain, Norm, Statistic};

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
