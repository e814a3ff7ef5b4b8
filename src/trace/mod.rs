//! Runs a checkpoint and returns its intermediate results under the names that fixtures use.
//!
//! From `hidden_states` only the blocks run; from `input_ids`, `pixel_values` or `input_features` the whole model, which
//! also gives `embeddings`, and `pooler_output` and `logits` where the checkpoint has them.
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
