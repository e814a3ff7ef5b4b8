//! Runs a checkpoint and returns its intermediate results under the names in fixtures.
//!
//! With `hidden_states` only the blocks run. With `input_ids`, `pixel_values` or `input_features` the whole model
//! runs and also returns `embeddings`, and `pooler_output` and `logits` if the checkpoint has them.
//!
//! Both stacks run in a checkpoint opened with [`whole`](crate::CheckpointOptions::whole). With `input_ids` or
//! `input_features` and `decoder_input_ids`, the encoder's stages are `encoder.embeddings`, `encoder.layers.{i}.*`
//! and `encoder_last_hidden_state`, and the decoder's have no prefix. With `input_ids` and `pixel_values`, the text
//! tower's stages have no prefix and the vision tower's have the prefix `vision.`; `text_embeds`, `image_embeds` and
//! `logits_per_image` compare the two.
//!
//! The other names are `layers.{i}.feed_forward.input` and `.output` (for the feed-forward alone, before dropout,
//! residual and norm), `layers.{i}.output`, `last_hidden_state`, `grads.hidden_states` and `grads.<tensor name on
//! disk>`. Together with [`verify`](crate::verify) this module compares a checkpoint with PyTorch:
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
mod unread;

pub use backward::run_backward;
pub use input::TraceInput;
pub use stages::{run, run_packed};
