//! The program `candle-blocks`: the files it writes, what it prints, its exit status. `refusals` has what it refuses.

#[path = "../shared/all.rs"]
mod all;
#[path = "../shared/committed.rs"]
mod committed;
#[path = "../shared/levels.rs"]
mod levels;
#[path = "../shared/message.rs"]
mod message;
#[path = "../shared/numbers.rs"]
mod numbers;
#[path = "../shared/said.rs"]
mod said;
#[path = "../shared/scratch.rs"]
mod scratch;
#[path = "../shared/synthetic.rs"]
mod synthetic;
#[path = "../shared/weights.rs"]
mod weights;

mod adapters;
mod bench;
mod cli;
mod conversation;
mod family_file;
mod generate;
mod gguf;
mod inputs;
mod inspect;
#[cfg(unix)]
mod interrupted;
mod like;
mod memory_limits;
mod notes;
#[cfg(unix)]
mod odd_files;
mod packed;
mod quantize;
mod run;
mod speech;
mod texts;
mod two_stacks;
