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
#![cfg_attr(feature = "text", doc = include_str!("text/first.md"))]
//! A feed-forward and a block:
//!
//! ```
//! use candle_blocks::candle_core::{DType, Device, ModuleT, Tensor};
//! use candle_blocks::{Activation, Checkpoint, NormPlacement, PlainFile, Weights};
//!
//! // x + W2·gelu(W1·norm(x) + b1) + b2: a safetensors file with W1, b1, W2, b2, norm.weight and norm.bias
//! let file = PlainFile::open("weights/own-module/feed_forward.safetensors")?;
//! let layer = file.sublayer(Activation::Gelu, NormPlacement::Pre, 1e-5, DType::F32, &Device::Cpu)?;
//! let checkpoint = Checkpoint::open("weights/tiny-gpt2")?;
//! let block = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu)).block(0)?;
//! let x = Tensor::randn(0f32, 1., (2, 5, 24), &Device::Cpu)?; // [batch, seq, d_model]
//! let y = block.forward(&layer.forward_t(&x, false)?)?; // false: no dropout
//! assert_eq!(y.dims(), x.dims());
//! # Ok::<(), candle_blocks::Error>(())
//! ```
//!
//! # The front page
//!
//! | | |
//! |---|---|
//! | **open** | [`Checkpoint`], [`CheckpointOptions`], [`Weights`], [`Loader`], [`Precision`], [`LoadReport`], [`Strictness`], [`SaveOptions`], [`Family`], [`PlainFile`], [`Hub`] |
//! | **layers** | [`FeedForward`], [`TransformerBlock`], [`Stack`], [`Attention`], [`Linear`], [`Norm`], [`Dropout`], [`KvCache`], [`ForwardContext`], [`AttentionMask`] |
//! | **config** | [`FeedForwardConfig`], [`FeedForwardForm`], [`BlockConfig`], [`StackConfig`], [`AttentionConfig`], [`NormConfig`], [`NormPlacement`], [`LinearConfig`], [`Activation`], [`Position`], [`RotaryConfig`], [`Topology`] |
//! | **model** | [`Model`], [`ModelInput`], [`ModelOutput`], [`Seq2Seq`], [`TwoTowers`] |
//! | **train** | [`AdamW`], [`AdamWConfig`], [`ParameterGroup`], [`Lora`], [`LoraConfig`], [`Fresh`], [`Schedule`] |
//! | **generate** | [`Generator`], [`Generation`], [`GenerationOptions`], [`Sampler`], [`Sampling`] |
//! | **text** | [`TextEmbedder`], [`TextClassifier`], [`TextGenerator`], [`TextOptions`], [`Tokenizer`], [`Message`] (feature `text`) |
//! | **pictures** | [`pictures::ImageClassifier`], [`pictures::ZeroShotImageClassifier`], [`pictures::ImageEmbedder`], [`pictures::ImageProcessor`] (feature `media`) |
//! | **check** | [`verify`], [`Fixture`], [`Report`] |
//! | **errors** | [`enum@Error`], [`Result`] |
//!
//! The modules have the other items of their subject. [`advanced`] has what own layers, families and tools need; it is promised
//! for one minor version only.
//!
//! # Where to look
//!
//! | To … | use |
//! |---|---|
//! | compute vectors or scores for texts | [`TextEmbedder`] and [`TextClassifier`] (feature `text`) |
//! | compute labels or vectors for images | [`pictures`] (feature `media`) |
//! | generate text, or answer in a chat | [`TextGenerator`] (feature `text`) |
//! | transcribe audio files | [`speech::Transcriber`] (feature `media`) |
//! | load a pretrained model, or its blocks | [`Checkpoint::open`], or [`Checkpoint::from_hub`] (feature `hub`), then [`Checkpoint::load`] |
//! | run as fast as possible on a CPU | [`Weights::Packed`], or `pack` on a linear layer, feed-forward, attention, sublayer, block or stack |
//! | run it on token ids, images or audio features | [`Loader::model`] |
//! | run an encoder with its decoder, or compare texts and images | [`CheckpointOptions::whole`] |
//! | replace candle-transformers' BERT | [`compat::bert`] |
//! | load one of the two stacks in T5, BART or CLIP | [`CheckpointOptions::part`] |
//! | load a model family that is not built in | [`Family::from_json_file`] or [`CheckpointOptions::family`] |
//! | load `W1, b1, W2, b2` without a `config.json` | [`PlainFile`] |
//! | mask padding, attend to an encoder, set positions | [`ForwardContext`] and [`AttentionMask`] |
//! | read the hidden states of every layer | [`Stack::observe`] |
//! | decode token by token | [`Stack::forward_cached`] |
//! | generate token ids, greedily or by sampling | [`Generator`] |
//! | build layers into your own model | `new(&config, vb)` for every layer; `from_parts(..)` for linear layers, norms, feed-forwards and perceptrons |
//! | build layers from tensors in memory | `new(&config, vb)` with candle's `VarBuilder::from_tensors` |
//! | reload layers that were saved under this crate's names | `new(&config, vb)` with candle's `VarBuilder::from_mmaped_safetensors` |
//! | start from fresh parameters | [`Fresh`], with the sizes of a [`checkpoint::Architecture`] |
//! | train, fine-tune, attach LoRA adapters | [`Checkpoint::trainable`] and [`train`] |
//! | save a trained model | [`Checkpoint::save`], [`checkpoint::Architecture::save`], [`Lora::save_peft`] |
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
//! use candle_blocks::{AttentionMask, Checkpoint, ForwardContext, Precision, Weights};
//! use candle_blocks::candle_core::{DType, Device, Tensor};
//!
//! let checkpoint = Checkpoint::open("weights/tiny-bert")?; // a directory, a file or a shard index
//! let d_model = checkpoint.config().blocks[0].d_model();
//! let x = Tensor::randn(0f32, 1., (2, 4, d_model), &Device::Cpu)?; // the embeddings
//! let mask = Tensor::new(&[[1u8, 1, 1, 1], [1, 1, 0, 0]], &Device::Cpu)?; // 1 = a real token
//! let context = ForwardContext::evaluation().with_mask(AttentionMask::padding(&mask)?);
//!
//! let stack = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu)).stack()?; // any device, differentiable
//! let mut hidden_states = vec![x.clone()];
//! let last = stack.observe(&x, &context, |_layer, stages| {
//!     hidden_states.push(stages.output().clone());
//!     Ok(())
//! })?;
//! assert_eq!(hidden_states.len(), 1 + stack.layers().len());
//!
//! let packed = checkpoint.load(Weights::Packed(Precision::F32)).stack()?; // the fastest form on a CPU
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
//! use candle_blocks::{AttentionMask, Checkpoint, ForwardContext, Precision, Weights};
//! use candle_blocks::candle_core::{Device, Tensor};
//!
//! let checkpoint = Checkpoint::open("weights/tiny-gpt2")?;
//! let stack = checkpoint.load(Weights::Packed(Precision::F32)).stack()?;
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
//! [`checkpoint`] leads from files to layers, and [`model`] joins embeddings, blocks and heads. [`train`] has the optimizer, schedules
//! and LoRA, [`generate`] the generation of token ids, [`text`] whole tasks on texts, `speech` transcripts, and [`compat`] candle-transformers' interface.
//! [`trace`] names every intermediate result, and [`verify`] compares results with PyTorch's; it uses no layer, so it cannot repeat a layer's mistake. The blocks themselves
//! ([`advanced::config`], [`advanced::ops`], [`advanced::layers`]) are the package `candle-blocks-layers`, which serves alone.
//!
//! # Features and versions
//!
//! `hub` downloads from the Hugging Face Hub, `text` has tokenizers and chat templates, and `media` reads pictures and audio files. `cuda`, `metal`, `accelerate` and `mkl` are candle's features, and `mpi` divides blocks among processes.
//!
//! Use candle through [`candle_core`] and [`candle_nn`], as this crate re-exports them: a release that needs another minor
//! version of candle is a new minor version of this crate.
#![deny(missing_docs)]
// Links to items of features that are off.
#![cfg_attr(
    not(all(feature = "hub", feature = "media", feature = "text")),
    allow(rustdoc::broken_intra_doc_links)
)]
// docs.rs shows which feature an item needs. It sets this flag, and its compiler accepts it.
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod advanced;
pub mod checkpoint;
pub mod compat;
pub mod generate;
pub mod model;
#[cfg(feature = "media")]
pub mod pictures;
#[cfg(feature = "media")]
pub mod speech;
#[cfg(feature = "text")]
pub mod text;
pub mod trace;
pub mod train;

use candle_blocks_base as error;
use candle_blocks_base::memory;
#[doc(inline)]
pub use candle_blocks_layers::verify;
#[doc(hidden)]
pub use candle_blocks_layers::{config, device, layers, ops};
pub use candle_core;
pub use candle_nn;

#[cfg(feature = "hub")]
#[doc(inline)]
pub use checkpoint::hub::Hub;
#[doc(inline)]
pub use checkpoint::scheme::Family;
#[doc(inline)]
pub use checkpoint::{
    Checkpoint, CheckpointOptions, LoadReport, Loader, PlainFile, SaveOptions, Strictness, Weights,
};
#[doc(inline)]
pub use config::{
    Activation, AttentionConfig, BlockConfig, FeedForwardConfig, FeedForwardForm, LinearConfig,
    NormConfig, NormPlacement, Position, Precision, RotaryConfig, StackConfig, Topology,
};
pub use error::{Error, Result};
#[doc(inline)]
pub use generate::{Generation, GenerationOptions, Generator, Sampler, Sampling};
#[doc(inline)]
pub use layers::{
    Attention, AttentionMask, Dropout, FeedForward, ForwardContext, KvCache, Linear, Norm, Stack,
    TransformerBlock,
};
#[doc(inline)]
pub use model::{Model, ModelInput, ModelOutput, Seq2Seq, TwoTowers};
#[cfg(feature = "text")]
#[doc(inline)]
pub use text::{Message, TextClassifier, TextEmbedder, TextGenerator, TextOptions, Tokenizer};
#[doc(inline)]
pub use train::{AdamW, AdamWConfig, Fresh, Lora, LoraConfig, ParameterGroup, Schedule};
#[doc(inline)]
pub use verify::{Fixture, Report};

// Earlier paths, whose items have their place in `checkpoint` and `advanced`.
#[doc(hidden)]
pub use checkpoint::{Architecture, Parameters};
#[doc(hidden)]
pub use config::{ExpertsConfig, RotaryPairing, Visibility};
#[doc(hidden)]
pub use layers::{DropoutSource, MixtureOfExperts, Mlp, RelativeBias, Sublayer, SublayerNorm};

/// The programs in the pages, compiled and run with the tests of the documentation.
#[cfg(all(doctest, feature = "text"))]
mod pages {
    #[doc = include_str!("../README.md")]
    struct ReadmePage;
    #[doc = include_str!("../docs/embeddings.md")]
    struct EmbeddingsPage;
    #[doc = include_str!("../docs/tasks.md")]
    struct TasksPage;
    #[doc = include_str!("../docs/generation.md")]
    struct GenerationPage;
    #[cfg(feature = "media")]
    #[doc = include_str!("../docs/inputs.md")]
    struct InputsPage;
    #[doc = include_str!("../docs/own-block.md")]
    struct OwnBlock;
    #[doc = include_str!("../docs/fine-tuning.md")]
    struct FineTuning;
}
