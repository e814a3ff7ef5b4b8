//! Generation: continues sequences of token ids with a model.
//!
//! A [`Generator`] continues a batch of prompts with different lengths. It computes each position once, and only the logits
//! that are needed. A [`Sampler`] selects the next tokens, greedily or at random; so does any closure from logits to tokens,
//! such as one around candle's `LogitsProcessor`. Everything else follows the checkpoint's `generation_config.json` as
//! transformers' `generate` does: lengths, penalties, suppressed and forced tokens, and beam search.
//!
//! ```
//! use candle_blocks::generate::{GenerationOptions, Generator, Sampler, Sampling};
//! use candle_blocks::{CheckpointOptions, Precision, Weights};
//! let options = CheckpointOptions::default().family_file("examples/smollm3.json");
//! let checkpoint = options.open("weights/like/smollm3")?; // or Checkpoint::open of a known family
//! let model = checkpoint.load(Weights::Packed(Precision::F32)).model()?;
//! let options = GenerationOptions::of(&checkpoint)?.with_max_new_tokens(4);
//! let generator = Generator::new(&model, options)?;
//! let prompts = [vec![3, 5, 7, 2], vec![4, 1]];
//!
//! let greedy = generator.generate(&prompts, Sampler::greedy())?; // the new tokens of each prompt
//! assert_eq!(greedy.len(), 2);
//!
//! let sampling = Sampling::at(0.8).with_top_p(0.9).with_seed(7);
//! for step in generator.start(&prompts, Sampler::new(sampling)?)? {
//!     let tokens: Vec<Option<u32>> = step?; // one of each prompt, none where it has ended
//!     assert_eq!(tokens.len(), 2);
//! }
//! # Ok::<(), candle_blocks::Error>(())
//! ```

mod beams;
mod choose;
mod config_file;
mod decoder;
mod decoder_input;
mod generation;
mod generator;
mod lengths;
mod options;
mod processors;
mod prompts;
mod sampler;
mod sampling;
mod speech;
mod speech_request;
mod timestamps;

pub use beams::{BeamOptions, EarlyStopping};
pub use candle_blocks_base::stop_strings::StopStrings;
pub use choose::{Choose, Sequence};
pub use decoder::{CausalDecoder, Decoder, max_positions};
pub use generation::{Finish, Generation};
pub use generator::Generator;
pub use options::GenerationOptions;
pub use prompts::prompts;
pub use sampler::Sampler;
pub use sampling::Sampling;
#[cfg(feature = "media")]
pub(crate) use speech::language_of_token;
pub use speech::{SpeechStart, SpeechTask};
pub use speech_request::SpeechRequest;
pub use timestamps::TimestampRules;
