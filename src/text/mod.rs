//! Converts texts to vectors, scores and texts (feature `text`).
//!
//! A [`TextEmbedder`] computes vectors for texts, as sentence-transformers does. A [`TextClassifier`] returns scores for
//! labels, given texts or pairs. A [`TextGenerator`] continues texts, and conversations that a [`ChatTemplate`] writes. All
//! of them read texts with a [`Tokenizer`].

mod added_tokens;
mod batches;
mod chat_template;
mod classifier;
mod continued;
mod conversation;
mod embedder;
mod encoder;
mod expansion;
mod folder;
mod generator;
mod gguf;
use candle_blocks_templates as jinja;
mod messages;
mod options;
mod pieces;
mod pooling;
mod prompts;
mod reading;
mod scoring;
mod sentence_files;
mod sentences;
mod stages;
mod token_text;
mod token_types;
mod tokenizer;
mod tokenizer_class;
mod tokenizer_config;
mod truncation;

pub use chat_template::ChatTemplate;
pub use classifier::{Scores, TextClassifier};
pub use conversation::{Conversation, ConversationEnd, Message, TemplateValue};
pub use embedder::TextEmbedder;
pub use generator::{Prompt, TextGeneration, TextGenerator};
pub use options::TextOptions;
pub use pooling::Pooling;
pub use tokenizer::{TokenizedText, Tokenizer};
pub use truncation::TruncationStrategy;
