//! Runs a checkpoint and returns its intermediate results under the names that fixtures use.
//!
//! From `hidden_states` only the blocks run; from `input_ids`, `pixel_values` or `input_features` the whole model, which
//! also gives `embeddings`, and `pooler_output` and `logits` where the checkpoint has them.
//!
//! Of a checkpoint that was opened as a [`whole`](crate::CheckpointOptions::whole), both stacks run. From `input_ids` or
//! `input_features` and `decoder_input_ids`, an encoder's stages are `encoder.embeddings`, `encoder.layers.{i}.*` and
//! `encoder_last_hidden_state`, and its decoder's have the plain names. From `input_ids` and `pixel_values`, those of the
//! text tower have the plain names and those of the vision tower begin with `vision.`; `text_embeds`, `image_embeds` and
//! `logits_per_image` compare the two.
//!
//! The names are `layers.{i}.feed_forward.input` and `.output` (of the feed-forward alone, before dropout,
//! residual and norm), `layers.{i}.output`, `last_hidden_state`, `grads.hidden_states` and
//! `grads.<tensor name on disk>`. Together with [`verify`](crate::verify) this compares a checkpoint with PyTorch:
//!
//! ```
//! use candle_blocks::{Checkpoint, candle_core::{DType, Device}, trace, verify};
//!
//! let checkpoint = Checkpoint::open("weights/tiny-bert")?;
//! let fixture = verify::Fixture::open("weights/tiny-bert/fixture.safetensors")?;
//! let input = trace::TraceInput::new(|name| fixture.tensor(name).cloned())?;
//! let stages = trace::run(&checkpoint, &input, DType::F32, &Device::Cpu)?;
//! let report = verify::verify(&fixture, &stages.into_iter().collect());
//! assert!(report.passed, "{report}");
//! # Ok::<(), candle_blocks::Error>(())
//! ```

mod backward;
mod input;
mod stages;

pub use backward::run_backward;
pub use input::TraceInput;
pub use stages::{run, run_packed};
