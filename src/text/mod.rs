//! Texts in: the tokenizer of a checkpoint, and what is built on it (feature `text`).

mod tokenizer;

pub use tokenizer::{Encoded, Tokenizer};
