//! Texts in: the tokenizer of a checkpoint, and what is built on it (feature `text`).

mod chat_template;
mod generator;
mod pieces;
mod python_json;
mod stop_strings;
mod tokenizer;

pub use chat_template::{ChatTemplate, Message};
pub use generator::{Prompt, TextGeneration, TextGenerator};
pub use tokenizer::{Encoded, Tokenizer};
