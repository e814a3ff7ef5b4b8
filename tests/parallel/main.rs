//! Blocks divided among ranks: PyTorch's outputs and gradients, one process's files, and errors where something cannot be
//! divided. Ranks are threads, and with the feature `mpi` processes too.

#[path = "../shared/committed.rs"]
mod committed;
#[path = "../shared/device.rs"]
mod device;
#[path = "../shared/even_llama.rs"]
mod even_llama;
#[cfg(feature = "mpi")]
#[path = "../../examples/tensor_parallel.rs"]
mod example;
#[path = "../shared/judged.rs"]
mod judged;
#[path = "../shared/message.rs"]
mod message;
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
mod masks;
#[cfg(feature = "mpi")]
mod mpi;
mod packed;
mod reading;
mod refusals;
mod rehearsal_of_all;
mod same_bits;
mod scopes;
mod training;
