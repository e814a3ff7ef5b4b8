//! The program `candle-blocks`: the files it writes, what it prints, its exit status.

#[path = "../../../../tests/shared/all.rs"]
mod all;
#[path = "../../../../tests/shared/committed.rs"]
mod committed;
#[path = "../../../../tests/shared/device.rs"]
mod device;
#[cfg(feature = "media")]
#[path = "../../../../tests/shared/hub_server.rs"]
mod hub_server;
#[path = "../../../../tests/shared/levels.rs"]
mod levels;
#[path = "../../../../tests/shared/message.rs"]
mod message;
#[path = "../../../../tests/shared/numbers.rs"]
mod numbers;
#[path = "../../../../tests/shared/said.rs"]
mod said;
#[cfg(feature = "media")]
#[path = "../../../../tests/shared/sounds.rs"]
mod sounds;
#[path = "../../../../tests/shared/synthetic.rs"]
mod synthetic;
#[cfg(feature = "media")]
#[path = "../../../../tests/shared/wav.rs"]
mod wav;
#[path = "../../../../tests/shared/weights.rs"]
mod weights;

mod adapters;
mod bench;
mod chat;
mod cli;
mod control_characters;
mod conversation;
mod damage;
mod family_file;
mod generate;
mod gguf;
#[cfg(feature = "media")]
mod images;
mod inputs;
mod inspect;
mod inspect_mismatch;
#[cfg(unix)]
mod interrupted;
mod like;
mod manual;
mod memory_limits;
mod notes;
#[cfg(unix)]
mod odd_files;
mod packed;
mod pages;
mod quantize;
mod refused;
mod run;
mod scratch;
mod speech;
mod standard_input;
mod tasks;
mod texts;
#[cfg(feature = "media")]
mod transcribe;
mod two_stacks;
mod vectors;
mod whole_models;
