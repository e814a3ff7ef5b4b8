//! Whole models. Their inputs are token ids, images or audio; their outputs are hidden states, vectors and logits.
//!
//! A [`Model`] has the embeddings, blocks, pooler and head of a [`Checkpoint`](crate::Checkpoint), on any device with
//! gradients, or packed for inference on the CPU. A [`Seq2Seq`] is an encoder with its decoder. [`TwoTowers`] are a
//! text encoder and an image encoder.
//!
//! ```
//! use candle_blocks::{Checkpoint, Precision, model::ModelInput, Weights};
//! use candle_blocks::candle_core::{Device, Tensor};
//! let checkpoint = Checkpoint::open("weights/tiny-bert")?;
//! let model = checkpoint.load(Weights::Packed(Precision::F32)).model()?;
//! let ids = Tensor::new(&[[2u32, 5, 7], [4, 1, 0]], &Device::Cpu)?;
//! let mask = Tensor::new(&[[1u8, 1, 1], [1, 1, 0]], &Device::Cpu)?; // 1 = a real token
//! let output = model.forward(&ModelInput::tokens(&ids).with_mask(&mask))?;
//! assert_eq!(output.last_hidden_state.dims()[..2], [2, 3]);
//! # Ok::<(), candle_blocks::Error>(())
//! ```

mod cache;
mod deprecated;
mod input;
mod load;
mod new_head;
mod output;
mod seq2seq;
mod shared;
mod two_towers;
mod walk;

pub use cache::ModelCache;
pub use input::ModelInput;
pub use new_head::NewHead;
pub use output::ModelOutput;
pub use seq2seq::{Encoded, Seq2Seq, Seq2SeqOutput};
#[cfg(feature = "media")]
pub(crate) use two_towers::of_length_one;
pub use two_towers::{TwoTowers, TwoTowersOutput};
pub use walk::Model;
