//! Recurrences whose state is a matrix for each head: the gated delta rule.

mod backward;
mod columns;
mod delta_rule;

pub use backward::DeltaGradients;
pub use delta_rule::{CHUNK, DeltaRule, StateHeads, n_snapshots};

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
