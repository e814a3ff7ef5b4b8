//! Transformers for [candle](https://github.com/huggingface/candle), from a [`FeedForward`] or
//! [`TransformerBlock`] to whole models ([`model`]). They
//!
//! - load from the safetensors checkpoint of any known family, guided by its `config.json` alone, and
//!   report what became of every tensor ([`Checkpoint`]);
//! - compute PyTorch's numbers, verified from ids to logits against fixtures exported from PyTorch ([`verify`]);
//! - run on the CPU with kernels of their own, and can be packed for inference in f32, f16, bf16, int8 or int4
//!   ([`packed`]); on CUDA and Metal they are composed of candle's operations;
//! - train: no operation cuts the autograd graph ([`ops`]), and a trained stack is saved to files
//!   that `transformers` reads ([`Checkpoint::save`]).
//!
//! # Where to look
//!
//! | To … | use |
//! |---|---|
//! | load a pretrained model, or its blocks | [`Checkpoint::open`], or `Checkpoint::from_hub` (feature `hub`) |
//! | run it from token ids, pixels or a spectrum | [`Checkpoint::model`], [`Checkpoint::packed_model`] |
//! | run an encoder and its decoder, or compare texts and images | [`CheckpointOptions::whole`] |
//! | make vectors or scores of texts | `text::TextEmbedder` and `text::TextClassifier` (feature `text`) |
//! | change over from candle-transformers' BERT | [`compat::bert`] |
//! | load one stack of a model that has two (T5, BART, CLIP) | [`CheckpointOptions::part`] |
//! | load a family that the crate does not know | [`Family::from_json_file`](checkpoint::scheme::Family::from_json_file) or [`CheckpointOptions::family`] |
//! | load `W1, b1, W2, b2` without a `config.json` | [`PlainFile`] |
//! | run as fast as possible on a CPU | [`Checkpoint::packed_stack`], or `pack` on a linear layer, feed-forward, attention, sublayer, block or stack, with a [`Precision`] |
//! | mask padding, attend to an encoder, set positions | [`ForwardContext`] and [`AttentionMask`] |
//! | read the hidden states of every layer | [`Stack::observe`] |
//! | decode token by token | [`Stack::forward_cached`], [`PackedStack::forward_cached`] |
//! | continue token ids, greedily or drawn | [`generate::Generator`] |
//! | continue texts, or answer in a chat (feature `text`) | `text::TextGenerator` |
//! | build layers into a model of your own | `new(&config, vb)` of every layer; `from_parts(..)` of linear layers, norms, feed-forwards and perceptrons |
//! | build layers of tensors in memory | `new(&config, vb)` with candle's `VarBuilder::from_tensors` |
//! | reload layers that were saved under this crate's names | `new(&config, vb)` with candle's `VarBuilder::from_mmaped_safetensors` |
//! | start from fresh parameters | [`train::Fresh`], with the sizes of an [`Architecture`] |
//! | train, fine-tune, attach LoRA adapters | [`Checkpoint::trainable`] and [`train`] |
//! | save what was trained | [`Checkpoint::save`], [`Architecture::save`], [`train::Lora::save_peft`] |
//! | divide blocks among processes | [`checkpoint::TensorParallel`] |
//! | compare with PyTorch | [`trace`] and [`verify`] |
//!
//! # Inference
//!
//! A whole model reads token ids ([`model`] has an example). By themselves, blocks map hidden states
//! `[batch, seq, d_model]` to hidden states of the same shape and type, which is that of the layers. Whether attention is causal is part of the model's configuration, so only padding needs a mask:
//!
//! ```
//! use candle_blocks::{AttentionMask, Checkpoint, ForwardContext, Precision};
//! use candle_blocks::candle_core::{DType, Device, Tensor};
//!
//! let checkpoint = Checkpoint::open("weights/tiny-bert")?; // a directory, a file or a shard index
//! let d_model = checkpoint.config().blocks[0].d_model();
//! let x = Tensor::randn(0f32, 1., (2, 4, d_model), &Device::Cpu)?; // the embeddings
//! let mask = Tensor::new(&[[1u8, 1, 1, 1], [1, 1, 0, 0]], &Device::Cpu)?; // 1 = a real token
//! let context = ForwardContext::evaluation().with_mask(AttentionMask::padding(&mask)?);
//!
//! let stack = checkpoint.stack(DType::F32, &Device::Cpu)?; // any device, differentiable
//! let mut hidden_states = vec![x.clone()];
//! let last = stack.observe(&x, &context, |_layer, stages| {
//!     hidden_states.push(stages.output().clone());
//!     Ok(())
//! })?;
//! assert_eq!(hidden_states.len(), 1 + stack.layers().len());
//!
//! let packed = checkpoint.packed_stack(Precision::F32)?; // the fastest form on a CPU
//! let same = packed.forward_with(&x, &context)?;
//! let difference = (same - last)?.narrow(1, 0, 2)?.abs()?.max_all()?.to_scalar::<f32>()?;
//! assert!(difference < 1e-5); // compared where both sequences are real
//! # Ok::<(), candle_blocks::Error>(())
//! ```
//!
//! Every layer and packed layer is `Send` and `Sync`: share one among threads by reference or in an
//! `Arc`. Each caller that decodes has a cache of its own.
//!
//! # Decoding
//!
//! Prompts of unequal lengths are padded on the left, as in `transformers`. The mask and the positions
//! given with each call are those of the *new* tokens; the cache remembers the earlier ones.
//!
//! ```
//! use candle_blocks::{AttentionMask, Checkpoint, ForwardContext, Precision};
//! use candle_blocks::candle_core::{Device, Tensor};
//!
//! let checkpoint = Checkpoint::open("weights/tiny-gpt2")?;
//! let stack = checkpoint.packed_stack(Precision::F32)?;
//! let mut cache = stack.new_cache();
//! let d_model = checkpoint.config().blocks[0].d_model();
//!
//! // Prompts of four tokens and of two.
//! let prompt = Tensor::randn(0f32, 1., (2, 4, d_model), &Device::Cpu)?;
//! let mask = Tensor::new(&[[1u8, 1, 1, 1], [0, 0, 1, 1]], &Device::Cpu)?;
//! let positions = Tensor::new(&[[0u32, 1, 2, 3], [0, 0, 0, 1]], &Device::Cpu)?; // for rotary embeddings
//! let context = ForwardContext::evaluation()
//!     .with_mask(AttentionMask::padding(&mask)?)
//!     .with_position_ids(&positions)?;
//! stack.forward_cached(&prompt, &context, &mut cache)?; // its last position predicts the next token
//!
//! for step in 0..3u32 {
//!     let token = Tensor::randn(0f32, 1., (2, 1, d_model), &Device::Cpu)?;
//!     let positions = Tensor::new(&[[4 + step], [2 + step]], &Device::Cpu)?;
//!     let context = ForwardContext::evaluation().with_position_ids(&positions)?;
//!     stack.forward_cached(&token, &context, &mut cache)?;
//! }
//! assert_eq!(cache.seen(), 7);
//! # Ok::<(), candle_blocks::Error>(())
//! ```
//!
//! # Layers in a model of your own
//!
//! ```
//! use candle_blocks::{AttentionConfig, BlockConfig, FeedForwardConfig, Linear, LinearConfig, NormConfig};
//! use candle_blocks::{NormPlacement, TransformerBlock};
//! use candle_blocks::candle_core::{self, DType, Device, Module, Tensor};
//! use candle_blocks::candle_nn::{Embedding, VarBuilder, VarMap, embedding};
//!
//! struct Classifier {
//!     embedding: Embedding,
//!     block: TransformerBlock,
//!     head: Linear,
//! }
//!
//! impl Classifier {
//!     fn new(vb: VarBuilder) -> candle_core::Result<Self> {
//!         let config = BlockConfig::new(
//!             AttentionConfig::new(16, 4)?, // d_model, heads; `.causal()` for a decoder
//!             FeedForwardConfig::new(16),
//!             NormConfig::layer_norm(16, 1e-5),
//!             NormPlacement::Pre,
//!         );
//!         Ok(Self {
//!             embedding: embedding(100, 16, vb.pp("embedding"))?,
//!             block: TransformerBlock::new(&config, vb.pp("block"))?,
//!             head: Linear::new(&LinearConfig::new(16, 3), vb.pp("head"))?,
//!         })
//!     }
//! }
//!
//! impl Module for Classifier {
//!     fn forward(&self, ids: &Tensor) -> candle_core::Result<Tensor> {
//!         let hidden = self.block.forward(&self.embedding.forward(ids)?)?; // [batch, seq, d_model]
//!         self.head.forward(&hidden.mean(1)?)
//!     }
//! }
//!
//! let parameters = VarMap::new();
//! let model = Classifier::new(VarBuilder::from_varmap(&parameters, DType::F32, &Device::Cpu))?;
//! let ids = Tensor::new(&[[1u32, 2, 3]], &Device::Cpu)?;
//! assert_eq!(model.forward(&ids)?.dims(), [1, 3]);
//! # Ok::<(), candle_core::Error>(())
//! ```
//!
//! # Errors
//!
//! Layers return [`candle_core::Result`], so that they fit into candle code; whatever reads files or
//! configurations returns this crate's [`Result`], whose [`enum@Error`] says what was expected, what was
//! found and what to do. `?` converts in both directions.
//!
//! # Modules
//!
//! Each depends only on those before it: [`config`] (plain data), [`device`] (types that one lacks), [`ops`]
//! (differentiable operations), [`layers`], [`packed`] (the same layers for inference on the CPU), [`checkpoint`]
//! (files to layers), [`train`] (what training needs besides gradients), [`model`] (embeddings, blocks and heads as one),
//! [`compat`] (candle-transformers' interface), [`generate`] (the next tokens), `text` (texts to vectors, scores and texts)
//! and [`trace`] (every stage of a forward pass by name). [`verify`] stands apart: it knows no layer, so it cannot share a
//! layer's mistakes.
//!
//! Features: `hub` (downloads from the Hugging Face Hub), `text` (tokenizers and chat templates), `cli` (the program
//! `candle-blocks`), and candle's `cuda`, `metal`, `accelerate` and `mkl`.
#![deny(missing_docs)]
// docs.rs marks items with the feature that they need; it sets this flag and has the compiler for it.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod checkpoint;
pub mod compat;
pub mod config;
pub mod device;

mod error;
pub mod generate;
pub mod layers;
mod memory;
pub mod model;
pub mod ops;
pub mod packed;
#[cfg(feature = "text")]
pub mod text;
pub mod trace;
pub mod train;
pub mod verify;

pub use candle_core;
pub use candle_nn;

pub use checkpoint::{
    Architecture, Checkpoint, CheckpointOptions, LoadReport, Loader, Parameters, PlainFile,
    SaveOptions, Strictness,
};
pub use config::{
    Activation, AttentionConfig, BlockConfig, ExpertsConfig, FeedForwardConfig, FeedForwardForm,
    LinearConfig, NormConfig, NormPlacement, Position, Precision, RotaryConfig, RotaryPairing,
    StackConfig, Topology, Visibility,
};
pub use error::{Error, Result};
pub use layers::{
    Attention, AttentionMask, Dropout, DropoutSource, FeedForward, ForwardContext, KvCache, Linear,
    MixtureOfExperts, Mlp, Norm, RelativeBias, Stack, Sublayer, SublayerNorm, TransformerBlock,
};
pub use packed::{
    PackedAttention, PackedFeedForward, PackedKvCache, PackedMixtureOfExperts, PackedStack,
    PackedTransformerBlock,
};

/// The programs in the pages, compiled and run with the tests of the documentation.
#[cfg(all(doctest, feature = "text"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct Readme;
    #[doc = include_str!("../docs/embeddings.md")]
    struct Embeddings;
    #[doc = include_str!("../docs/generation.md")]
    struct Generation;
    #[doc = include_str!("../docs/own-block.md")]
    struct OwnBlock;
    #[doc = include_str!("../docs/fine-tuning.md")]
    struct FineTuning;
}
