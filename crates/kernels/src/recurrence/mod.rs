//! Recurrences whose state is a matrix for each head: the gated delta rule, and sums that decay. The selective scan has a
//! decay for each element.

mod backward;
mod columns;
mod forward;
mod selective;

pub use backward::RecurrenceGradients;
pub use columns::Rule;
pub use forward::{CHUNK, Recurrence, StateHeads, n_snapshots};
pub use selective::{SelectiveGradients, SelectiveScan};

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
