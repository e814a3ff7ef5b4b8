//! Tokenizers as transformers builds them, on the `tokenizers` library: from a `tokenizer.json` with the settings beside it, from
//! the files of the class that a folder names, or from a GGUF file.
//!
//! Users of candle-blocks find what they need there, with the feature `text`. Items that the documentation hides serve that
//! package, and may change with every version.
#![deny(missing_docs)]

mod gguf;
mod tokenizer;
mod tokenizer_class;

pub use tokenizer::truncation::TruncationStrategy;
pub use tokenizer::{HasTokenizer, TokenizedText, Tokenizer};

#[doc(hidden)]
pub use tokenizer::{
    MAX_BYTES,
    config::is_left,
    decoding::SpecialTokens,
    pieces::TextPieces,
    token_types,
    windows::{DividedText, TokenWindows},
    words::{LabelPrompt, LabeledWords, Overlaps, TokenizedWords, Word},
};
#[doc(hidden)]
pub use tokenizer_class::TYPES_OF_CLASSES;
