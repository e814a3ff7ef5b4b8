//! Converts texts to vectors, scores and texts (feature `text`).
//!
//! A [`TextEmbedder`] computes vectors for texts, as sentence-transformers does. A [`TextClassifier`] returns scores for
//! labels, given texts or pairs, and a [`ZeroShotClassifier`] for labels that the caller names. A [`TextRanker`] ranks
//! texts for a query. A [`TokenClassifier`] finds entities, a [`Gliner`] those of labels that the caller names, a
//! [`MaskFiller`] tokens for gaps, and a [`QuestionAnswerer`] answers in texts. A [`TextGenerator`] continues texts, and
//! conversations that a [`ChatTemplate`] writes. All of them read texts with a [`Tokenizer`].

mod chat;
mod classifier;
mod embedder;
mod encoder;
mod generator;
use candle_blocks_templates as jinja;
mod options;
mod prompts;
mod scoring;
pub(crate) mod sentence_files;
mod sentences;
mod tasks;

pub use candle_blocks_tokenizers::{HasTokenizer, TokenizedText, Tokenizer, TruncationStrategy};
pub use chat::conversation::{Conversation, ConversationEnd, Message, TemplateValue};
pub use chat::template::ChatTemplate;
pub use classifier::{Scores, TextClassifier};
pub use embedder::TextEmbedder;
pub use generator::{Prompt, TextGeneration, TextGenerator};
pub use options::TextOptions;
pub use prompts::TextRole;
pub use scoring::FunctionToApply;
pub use sentences::pooling::Pooling;
pub use sentences::vector_precision::{QuantizedVectors, VectorPrecision};
pub use tasks::answers::{Answer, AnswerOptions};
pub use tasks::entities::{Aggregation, Entity};
pub use tasks::gliner::Gliner;
pub use tasks::mask_filler::{Filling, MaskFiller};
pub use tasks::question_answerer::QuestionAnswerer;
pub use tasks::ranker::{RankedText, RankerQuery, TextRanker};
pub use tasks::token_classifier::TokenClassifier;
pub use tasks::zero_shot::{HypothesisTemplate, RankedLabels, ZeroShotClassifier};

#[cfg(feature = "media")]
pub(crate) use {
    encoder::host, options::WeightForm, options::without_effect, scoring::ScoreFunction,
};
