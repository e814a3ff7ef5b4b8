//! Texts in, vectors and scores out (feature `text`).
//!
//! A [`TextEmbedder`] makes vectors of texts, as sentence-transformers does; a [`TextClassifier`] gives texts, or pairs of
//! them, scores of labels; a [`Tokenizer`] is what both read texts with.

mod batches;
mod classifier;
mod embedder;
mod encoder;
mod options;
mod pooling;
mod sentence_files;
mod stages;
mod tokenizer;

pub use classifier::{Scores, TextClassifier};
pub use embedder::TextEmbedder;
pub use options::TextOptions;
pub use pooling::Pooling;
pub use tokenizer::{Encoded, Tokenizer};
