//! Whole models give what transformers' give.

#[path = "../shared/device.rs"]
mod device;
#[path = "../shared/double.rs"]
mod double;
#[path = "../shared/message.rs"]
mod message;
#[path = "../shared/rehearsal.rs"]
mod rehearsal;
#[path = "../shared/weights.rs"]
mod weights;

mod encoder_decoders;
mod two_towers;
mod vision;
mod whole_fixtures;
