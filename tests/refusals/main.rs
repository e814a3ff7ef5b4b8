//! Bad input is refused by layers, loaders, training and the program, with what was found, what was expected, and the cure.
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
#[cfg(feature = "cli")]
#[path = "../shared/scratch.rs"]
mod scratch;
#[path = "../shared/small.rs"]
mod small;
#[path = "../shared/weights.rs"]
mod weights;

mod advice;
mod config_limits;
#[cfg(feature = "cli")]
mod control_characters;
#[cfg(feature = "cli")]
mod damage;
mod every_block_runs;
#[cfg(feature = "cli")]
mod inspect_mismatch;
mod misfits;
mod misuse;
mod norm;
mod of_hub;
mod of_transformers;
mod options;
mod packed_input;
mod packed_parts;
#[cfg(feature = "cli")]
mod program;
mod shared_between_layers;
mod streams;
mod strictness;
mod training_refused;
#[cfg(feature = "cli")]
mod whole_models;
