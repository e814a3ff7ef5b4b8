//! Loads, runs and trains Hugging Face transformer models on [candle](https://github.com/huggingface/candle), from one
//! [`FeedForward`] or [`TransformerBlock`] to whole models ([`model`]).
//!
//! - A [`Checkpoint`] loads from safetensors or GGUF files by their `config.json`, and reports the use of every tensor.
//! - Results equal PyTorch's within a tested bound, from token ids to logits; [`verify`] compares them with fixtures from PyTorch.
//! - On the CPU, layers run this crate's own kernels, and can be packed for inference in f32, f16, bf16, int8 or int4
//!   ([`layers`](layers#packing)). On CUDA and Metal, layers are composed of candle's operations, for results and not for speed.
//! - Every parameter gets its gradient ([`ops`]), and transformers loads the saved files ([`Checkpoint::save`]).
//!
//! The guides in the repository's `docs/` folder show embeddings, generation, fine-tuning, your own blocks and new model
//! families step by step.
//!
//! # Where to look
//!
//! | To … | use |
//! |---|---|
//! | load a pretrained model, or its blocks | [`Checkpoint::open`], or `Checkpoint::from_hub` (feature `hub`) |
//! | run it on token ids, images or audio features | [`Checkpoint::model`], [`Checkpoint::packed_model`] |
//! | run an encoder with its decoder, or compare texts and images | [`CheckpointOptions::whole`] |
//! | compute vectors or scores for texts | `text::TextEmbedder` and `text::TextClassifier` (feature `text`) |
//! | replace candle-transformers' BERT | [`compat::bert`] |
//! | load one of the two stacks in T5, BART or CLIP | [`CheckpointOptions::part`] |
//! | load a model family that is not built in | [`Family::from_json_file`](checkpoint::scheme::Family::from_json_file) or [`CheckpointOptions::family`] |
//! | load `W1, b1, W2, b2` without a `config.json` | [`PlainFile`] |
//! | run as fast as possible on a CPU | [`Checkpoint::packed_stack`], or `pack` on a linear layer, feed-forward, attention, sublayer, block or stack, with a [`Precision`] |
//! | mask padding, attend to an encoder, set positions | [`ForwardContext`] and [`AttentionMask`] |
//! | read the hidden states of every layer | [`Stack::observe`] |
//! | decode token by token | [`Stack::forward_cached`] |
//! | generate token ids, greedily or by sampling | [`generate::Generator`] |
//! | generate text, or answer in a chat | `text::TextGenerator` (feature `text`) |
//! | build layers into your own model | `new(&config, vb)` for every layer; `from_parts(..)` for linear layers, norms, feed-forwards and perceptrons |
//! | build layers from tensors in memory | `new(&config, vb)` with candle's `VarBuilder::from_tensors` |
//! | reload layers that were saved under this crate's names | `new(&config, vb)` with candle's `VarBuilder::from_mmaped_safetensors` |
//! | start from fresh parameters | [`train::Fresh`], with the sizes of an [`Architecture`] |
//! | train, fine-tune, attach LoRA adapters | [`Checkpoint::trainable`] and [`train`] |
//! | save a trained model | [`Checkpoint::save`], [`Architecture::save`], [`train::Lora::save_peft`] |
//! | divide blocks among processes (tensor parallelism) | [`checkpoint::TensorParallel`] |
//! | compare with PyTorch | [`trace`] and [`verify`] |
//!
//! # Inference
//!
//! A whole model reads token ids ([`model`] has an example). A stack of blocks maps hidden states
//! `[batch, seq, d_model]` to hidden states with the same shape and dtype, the dtype of the layers. The configuration says if
//! attention is causal, so only padding needs a mask:
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
//! Every layer is `Send` and `Sync`: share one among threads by reference or in an
//! `Arc`. Each caller that decodes has its own cache.
//!
//! # Decoding
//!
//! Pad prompts with unequal lengths on the left, as in `transformers`. Each call gets the mask and the positions of the *new*
//! tokens; the cache keeps the earlier ones.
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
//! // Prompts with four tokens and with two.
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
//! # Layers in your own model
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
//! Layers return [`candle_core::Result`], like other candle code. Functions that read files or configurations return this
//! crate's [`Result`], whose [`enum@Error`] names the expected value, the found value and the cure. `?` converts in both
//! directions.
//!
//! # Modules
//!
//! [`config`] (plain data), [`device`] (types that a device does not support), [`ops`] (differentiable operations), [`layers`] and
//! [`verify`] are the package `candle-blocks-layers`, which serves alone. Above them stand [`checkpoint`] (files to layers), [`train`]
//! (optimizer, schedules, LoRA), [`model`] (embeddings, blocks and heads together), [`compat`] (candle-transformers' interface),
//! [`generate`] (generation of token ids), `text` (text to vectors, scores and text) and [`trace`] (every intermediate result by name).
//! [`verify`] uses no layer, so it cannot repeat a layer's mistake.
//!
//! # Features and versions
//!
//! `hub` downloads from the Hugging Face Hub, and `text` has tokenizers and chat templates. `cuda`, `metal`, `accelerate` and `mkl` are candle's features, and `mpi` divides blocks among processes.
//!
//! Use candle through [`candle_core`] and [`candle_nn`], as this crate re-exports them: a release that needs another minor
//! version of candle is a new minor version of this crate.
#![deny(missing_docs)]
// docs.rs shows which feature an item needs. It sets this flag, and its compiler accepts it.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod checkpoint;
pub mod compat;

use candle_blocks_base as error;
use candle_blocks_base::memory;
pub mod generate;
pub mod model;
#[cfg(feature = "text")]
pub mod text;
pub mod trace;
pub mod train;

#[doc(inline)]
pub use candle_blocks_layers::{config, device, layers, ops, verify};
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

/// The programs in the pages, compiled and run with the tests of the documentation.
#[cfg(all(doctest, feature = "text"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct ReadmePage;
    #[doc = include_str!("../docs/embeddings.md")]
    struct EmbeddingsPage;
    #[doc = include_str!("../docs/generation.md")]
    struct GenerationPage;
    #[doc = include_str!("../docs/own-block.md")]
    struct OwnBlock;
    #[doc = include_str!("../docs/fine-tuning.md")]
    struct FineTuning;
}
