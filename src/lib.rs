//! Transformer building blocks for [candle](https://github.com/huggingface/candle): a
//! [`FeedForward`] and a [`TransformerBlock`], with the norms, attention and activations they need,
//! that
//!
//! - load from the safetensors checkpoint of a known family by its `config.json` alone, and say
//!   exactly what they used ([`Checkpoint`]);
//! - give PyTorch's numbers, proved per sublayer against fixtures exported from PyTorch ([`verify`]);
//! - compute on the CPU with kernels of their own, packed for inference in f32, bf16 or int8 ([`packed`]), and on CUDA and
//!   Metal with candle's operations;
//! - train: no operation cuts the autograd graph ([`ops`]), and what was trained goes back to a file
//!   that `transformers` reads ([`Checkpoint::save`]).
//!
//! ```no_run
//! use candle_blocks::{Checkpoint, candle_core::{DType, Device, Tensor}};
//!
//! let checkpoint = Checkpoint::open("all-MiniLM-L6-v2")?; // directory, file or index
//! let stack = checkpoint.stack(DType::F32, &Device::Cpu)?;
//! let embeddings = Tensor::randn(0f32, 1., (1, 16, 384), &Device::Cpu)?; // [batch, seq, d_model]
//! println!("{}", stack.forward(&embeddings)?);
//! # Ok::<(), candle_blocks::Error>(())
//! ```
//!
//! Modules, each depending only on those before it: [`config`] (plain data), [`ops`] (differentiable
//! operations), [`layers`], [`packed`] (the same for inference on the CPU), [`checkpoint`] (files to layers), [`train`]
//! (what training needs beside gradients), [`trace`] (every stage of a forward pass by name), and apart from
//! them [`verify`], which knows no layer and so cannot share a layer's mistakes.
#![deny(missing_docs)]

pub mod checkpoint;
pub mod config;
mod cpu;
mod error;
pub mod layers;
pub mod ops;
pub mod packed;
pub mod trace;
pub mod train;
pub mod verify;

pub use candle_core;
pub use candle_nn;

pub use checkpoint::{
    Architecture, AsTensor, Checkpoint, CheckpointOptions, Existing, LoadReport, Loader,
    Parameters, PlainFile, SaveOptions, Strictness,
    scheme::{
        Family, FusedLayout, Half, Orientation, Part, Projection, Rule, StackPart, StackSource,
        Stacking,
    },
};
pub use config::{
    Activation, AlibiConfig, AlibiRounding, AlibiSlopes, AttentionBias, AttentionConfig,
    BlockConfig, Draw, ExpertsConfig, FeedForwardConfig, FeedForwardForm, Initialisation,
    NormConfig, NormKind, NormPlacement, NormWeight, ParallelNorm, Position, Precision,
    QueryKeyNorm, QueryKeyNormSpan, RelativeBiasConfig, ResidualConfig, ResidualSource,
    RotaryConfig, RotaryPairing, RotaryScaling, RoutingWeights, StackConfig, Topology, Visibility,
};
pub use error::{Error, Result};
pub use layers::{
    Attention, AttentionMask, BlockFeedForward, BlockStages, BranchScale, Dropout, DropoutSource,
    DropoutUnit, FeedForward, ForwardContext, KvCache, Linear, LinearInit, LowRank, Memory,
    MixtureOfExperts, Mlp, Norm, QueryKeyNorms, QueryKeyValue, RelativeBias, RotaryTables, Stack,
    Sublayer, SublayerNorm, SublayerStages, TransformerBlock,
};
pub use packed::{
    PackedAttention, PackedBlock, PackedBlockFeedForward, PackedCache, PackedFeedForward,
    PackedLinear, PackedMixture, PackedStack, PackedSublayer,
};

/// The README's program, compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
