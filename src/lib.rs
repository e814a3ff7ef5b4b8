//! Transformer building blocks for [candle](https://github.com/huggingface/candle).
#![deny(missing_docs)]

pub mod checkpoint;
pub mod config;
mod cpu;
mod error;
pub mod ops;
pub mod verify;

pub use config::{
    Activation, AttentionBias, AttentionConfig, BlockConfig, FeedForwardConfig, FeedForwardForm,
    NormConfig, NormKind, NormPlacement, NormWeight, StackConfig, Visibility,
};
pub use error::{Error, Result};
