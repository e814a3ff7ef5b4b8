//! Bad input is refused by layers, loaders, and training, with what was found, what was expected, and the cure.
//! What a file's bytes may be is in `files`.

#[path = "../shared/all.rs"]
mod all;
#[path = "../shared/committed.rs"]
mod committed;
#[path = "../shared/device.rs"]
mod device;
#[path = "../shared/hostile.rs"]
mod hostile;
#[path = "../shared/kinds.rs"]
mod kinds;
#[path = "../shared/message.rs"]
mod message;
#[path = "../shared/numbers.rs"]
mod numbers;
#[path = "../shared/refused.rs"]
mod refused;
#[path = "../shared/said.rs"]
mod said;
#[path = "../shared/small.rs"]
mod small;
#[path = "../shared/weights.rs"]
mod weights;
#[path = "../shared/zamba.rs"]
mod zamba;

mod advice;
mod config_limits;
mod every_block_runs;
mod misfits;
mod misuse;
mod norm;
mod of_hub;
mod of_transformers;
mod options;
mod packed_input;
mod packed_parts;
mod shared_between_layers;
mod streams;
mod strictness;
mod training_refused;
