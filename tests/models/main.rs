//! Whole models, from what they read to their logits.

#[path = "../shared/absent.rs"]
mod absent;
#[path = "../shared/composed.rs"]
mod composed;
#[path = "../shared/contents.rs"]
mod contents;
#[path = "../shared/cpu_only.rs"]
mod cpu_only;
#[path = "../shared/device.rs"]
mod device;
#[path = "../shared/double.rs"]
mod double;
#[path = "../shared/images.rs"]
mod images;
#[path = "../shared/message.rs"]
mod message;
#[path = "../shared/numbers.rs"]
mod numbers;
#[path = "../shared/rehearsal.rs"]
mod rehearsal;
#[path = "../shared/said.rs"]
mod said;
#[path = "../shared/same.rs"]
mod same;
#[path = "../shared/weights.rs"]
mod weights;
#[path = "../shared/whole.rs"]
mod whole;

mod changed_keys;
mod conversation_turns;
mod decoder_prompts;
mod encoder_decoders;
mod fresh_two_stacks;
mod generation;
mod generation_configs;
mod last_positions;
mod memory;
mod one_stack;
mod parity;
mod properties;
mod refused;
mod rehearsal_of_all;
mod report;
mod sampling;
mod saved;
mod shared_words;
mod two_towers;
mod unequal_prompts;
mod variants;
mod vision;
mod without_a_device;
