//! Recurrences whose state is a matrix for each head: the gated delta rule, and sums that decay.

mod backward;
mod columns;
mod forward;

pub use backward::RecurrenceGradients;
pub use columns::Rule;
pub use forward::{CHUNK, Recurrence, StateHeads, n_snapshots};

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
