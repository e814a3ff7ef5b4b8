//! The bytes of a picture or of a sound in, a model's input out: decoding, resizing and normalizing pixels, resampling, and
//! spectrograms, as the processors of transformers compute them. No layer, and no tokenizer.
//!
//! Users of candle-blocks find what they need there, with the feature `media`. All items here serve that package, and may change
//! with every version.
#![deny(missing_docs)]

pub mod pictures;
pub mod sound;
