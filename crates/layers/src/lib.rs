//! Transformer layers on [candle](https://github.com/huggingface/candle) that give PyTorch's results, forward and backward: from
//! [`FeedForward`] (`W1`, `b1`, `W2`, `b2`, an [`Activation`]) and [`Norm`] (LayerNorm and its relatives) to [`TransformerBlock`]
//! and [`Stack`].
//!
//! ```
//! use candle_blocks_layers::{Activation, FeedForward, FeedForwardConfig};
//! use candle_core::{DType, Device, Module, Tensor};
//! use candle_nn::{VarBuilder, VarMap};
//!
//! let parameters = VarMap::new();
//! let vb = VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu);
//! let config = FeedForwardConfig::new(64).with_activation(Activation::Gelu); // d_ff is 4 times d_model
//! let feed_forward = FeedForward::new(&config, vb)?; // or `from_parts`, with tensors from anywhere
//!
//! let x = Tensor::randn(0f32, 1., (2, 5, 64), &Device::Cpu)?; // [batch, seq, d_model]
//! let y = feed_forward.forward(&x)?; // act(x·W1ᵀ + b1)·W2ᵀ + b2
//! let gradients = y.sqr()?.mean_all()?.backward()?;
//! assert!(parameters.all_vars().iter().all(|var| gradients.get(var).is_some()));
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! [`config`] has plain data that describes layers, [`ops`] differentiable operations on a tape, [`layers`] the layers themselves,
//! and [`verify`] compares results with fixtures that PyTorch exported. Nothing here reads a checkpoint, a tokenizer or the
//! network: [candle-blocks](https://docs.rs/candle-blocks) does, and re-exports all of this.
#![deny(missing_docs)]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod config;
pub mod device;
pub mod layers;
pub mod ops;
pub mod verify;

use candle_blocks_base::{self as error, memory};
pub use candle_blocks_base::{Error, Result};
pub use candle_core;
pub use candle_nn;

pub use config::{
    Activation, AttentionConfig, BlockConfig, ExpertsConfig, FeedForwardConfig, FeedForwardForm,
    LinearConfig, NormConfig, NormPlacement, Position, Precision, RotaryConfig, RotaryPairing,
    StackConfig, Topology, Visibility,
};
pub use layers::{
    Attention, AttentionMask, Dropout, DropoutSource, FeedForward, ForwardContext, KvCache, Linear,
    MixtureOfExperts, Mlp, Norm, RelativeBias, Stack, Sublayer, SublayerNorm, TransformerBlock,
};

/// The program in the README, compiled and run with the tests of the documentation.
#[cfg(doctest)]
mod pages {
    #[doc = include_str!("../README.md")]
    struct ReadmePage;
}
