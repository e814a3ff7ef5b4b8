//! Training: fresh parameters, an optimizer over named parameters, learning rate schedules, a file to resume from, LoRA
//! adapters and activation checkpointing.
//!
//! A training loop takes its variables from [`Checkpoint::trainable`](crate::Checkpoint::trainable), [`Fresh`] or
//! [`Lora`], puts them into [`ParameterGroup`]s for [`AdamW`], and calls [`AdamW::backward`],
//! [`Gradients::clip_norm`] and [`AdamW::update`] at each step:
//!
//! ```
//! use candle_blocks::candle_core::{DType, Device, ModuleT, Tensor};
//! use candle_blocks::train::{AdamW, AdamWConfig, Decay, Fresh, ParameterGroup, Schedule, loss_value};
//! use candle_blocks::{FeedForward, FeedForwardConfig, config::Initialization, ops};
//! use std::collections::BTreeMap;
//!
//! let fresh = Fresh::new(Initialization::torch(), 42, DType::F32, &Device::Cpu);
//! let config = FeedForwardConfig::new(8).with_dropout(0.1);
//! let feed_forward = FeedForward::new(&config, fresh.var_builder())?;
//! let groups = ParameterGroup::decaying_matrices(fresh.parameters(), 0.01);
//! let mut optimizer = AdamW::new(groups, AdamWConfig { learning_rate: 1e-2, ..Default::default() })?;
//! let schedule = Schedule::new(Decay::Linear, 5, 50);
//!
//! let x = Tensor::randn(0f32, 1., (16, 8), &Device::Cpu)?;
//! let mut losses = Vec::new();
//! for step in 0..50 {
//!     let loss = ops::mse(&feed_forward.forward_t(&x, true)?, &x)?;
//!     let mut gradients = optimizer.backward(&loss)?;
//!     gradients.clip_norm(1.0)?;
//!     optimizer.update(&gradients, schedule.factor(step))?;
//!     losses.push(loss_value(&loss)?);
//! }
//! assert!(losses[49] < losses[0]);
//!
//! // An interrupted training goes on from here with `optimizer.restore(path)`.
//! let directory = tempfile::tempdir().unwrap();
//! let notes = BTreeMap::from([("step".to_string(), "50".to_string())]);
//! optimizer.save(directory.path().join("state.safetensors"), &notes)?;
//! # Ok::<(), candle_blocks::Error>(())
//! ```

mod adamw;
mod fresh;
mod gradients;
mod lora;
pub mod losses;
mod parameters;
mod peft;
mod peft_experts;
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
