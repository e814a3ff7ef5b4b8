//! Blocks divided among ranks: PyTorch's outputs and gradients, one process's files, and errors where something cannot be
//! divided. Ranks are threads here; `tests/mpi.rs` has processes.

#[path = "../shared/allowance.rs"]
mod allowance;
#[path = "../shared/committed.rs"]
mod committed;
#[path = "../shared/composed.rs"]
mod composed;
#[path = "../shared/device.rs"]
mod device;
#[path = "../shared/judged.rs"]
mod judged;
#[path = "../shared/numbers.rs"]
mod numbers;
#[path = "../shared/ranks.rs"]
mod ranks;
#[path = "../shared/rehearsal.rs"]
mod rehearsal;
#[path = "../shared/said.rs"]
mod said;
#[path = "../shared/weights.rs"]
mod weights;

mod families;
mod packed;
mod refusals;
mod same_bits;
mod training;
