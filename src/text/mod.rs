//! Converts texts to vectors, scores and texts (feature `text`).
//!
//! A [`TextEmbedder`] computes vectors for texts, as sentence-transformers does. A [`TextClassifier`] returns scores for
//! labels, given texts or pairs. A [`TextGenerator`] continues texts, and conversations that a [`ChatTemplate`] writes. All
//! of them read texts with a [`Tokenizer`].

mod chat;
mod classifier;
mod embedder;
mod encoder;
mod generator;
mod gguf;
use candle_blocks_templates as jinja;
mod options;
mod prompts;
mod scoring;
mod sentence_files;
mod sentences;
mod tokenizer;
mod tokenizer_class;

pub use chat::conversation::{Conversation, ConversationEnd, Message, TemplateValue};
pub use chat::template::ChatTemplate;
pub use classifier::{Scores, TextClassifier};
pub use embedder::TextEmbedder;
pub use generator::{Prompt, TextGeneration, TextGenerator};
pub use options::TextOptions;
pub use scoring::FunctionToApply;
pub use sentences::pooling::Pooling;
pub use tokenizer::truncation::TruncationStrategy;
pub use tokenizer::{TokenizedText, Tokenizer};
