//! What training needs beside gradients: fresh parameters, an optimiser over named parameters, learning rates,
//! and a file to go on from.

mod adamw;
mod fresh;
mod gradients;
mod lora;
mod parameters;
mod peft;
mod recompute;
mod resume;
mod schedule;

pub use adamw::{AdamW, AdamWConfig, loss_value};
pub use fresh::Fresh;
pub use gradients::Gradients;
pub use lora::{Lora, LoraConfig};
pub use parameters::{ParameterGroup, split};
pub use recompute::{Recomputed, backward_recomputing};
pub use schedule::{Decay, Schedule};
