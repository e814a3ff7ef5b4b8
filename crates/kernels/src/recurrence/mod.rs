//! Recurrences whose state is a matrix for each head: the gated delta rule, and sums that decay. The selective scan has a
//! decay for each element.

mod backward;
mod columns;
mod forward;
mod selective;
mod states;

pub use columns::Rule;
pub use forward::{Recurrence, StateHeads};
pub use selective::SelectiveScan;
pub use states::{CHUNK, StateKernel, States, n_snapshots};

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
