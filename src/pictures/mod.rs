//! Converts images to labels and vectors (feature `media`).
//!
//! An [`ImageClassifier`] returns scores for a model's labels, a [`ZeroShotImageClassifier`] for labels that the caller names, and
//! an [`ImageEmbedder`] returns vectors. All of them read an [`Image`] by an [`ImageProcessor`], which follows the model's
//! `preprocessor_config.json`: transformers' image processors, to the last bit of a resized image.

mod classifier;
mod embedder;
mod labels;
mod options;
mod processor;
mod processor_class;
mod runs;
mod zero_shot;

pub use candle_blocks_media::pictures::{Backend, Image};
pub use classifier::ImageClassifier;
pub use embedder::ImageEmbedder;
pub use options::ImageOptions;
pub use processor::ImageProcessor;
pub use zero_shot::ZeroShotImageClassifier;
