//! Trainable layers for any device. `new(&config, vb)` or a `Checkpoint` creates a layer. Linear
//! layers, norms, feed-forwards and perceptrons also have `from_parts(..)`. Each constructor checks its
//! configuration.
//!
//! Layers without dropout implement candle's `Module`. Layers with dropout implement `ModuleT` instead, so that
//! generic code cannot lose the training flag. They also have an inherent `forward` for evaluation, and
//! [`Evaluation`] makes a `Module` of them.
//!
//! # Packing
//!
//! `pack` returns the same layer with packed weights, for inference on the CPU. The weights are stored in the order in which
//! the matrix kernels read them: query, key and value together, and gate and up. Biases, activations, gates, residual
//! connections and norms are computed while the results of a product are in the cache. Attention never writes a matrix of
//! scores. A packed layer has no gradients and refuses an input that tracks them, and its weights cannot be read back. It
//! accepts f32, f16 and bf16 inputs, returns the dtype of its input, and computes in f32 between products.
//!
//! In every [`Precision`](crate::Precision), a row gives the same bits whatever the rest of the batch, its place in
//! it, the padding after it and the number of threads. A cache has no positions for the padding before a sequence,
//! so that a prompt beside longer ones has the same bits as alone, unless rotary angles follow the longest sequence
//! (LongRoPE, dynamic NTK) or a temperature counts the padding (Llama 4). A packed layer can be called from several threads at once.
//! Each thread that calls, and each thread in the pool, keeps the working memory of its largest call until it ends. A
//! call with much longer input than usual is best made from a thread of its own. A packed stack also keeps its memory
//! for hidden states.
//!
//! ```
//! use candle_blocks::{AttentionConfig, BlockConfig, FeedForwardConfig, NormConfig, NormPlacement};
//! use candle_blocks::{Precision, TransformerBlock};
//! use candle_core::{DType, Device, Tensor};
//! use candle_nn::VarBuilder;
//! let config = BlockConfig::new(
//!     AttentionConfig::new(64, 4)?,
//!     FeedForwardConfig::new(64),
//!     NormConfig::layer_norm(64, 1e-12),
//!     NormPlacement::Post,
//! );
//! let block = TransformerBlock::new(&config, VarBuilder::zeros(DType::F32, &Device::Cpu))?;
//! let packed = block.pack(Precision::F32)?;
//! let x = Tensor::randn(0f32, 1., (2, 3, 64), &Device::Cpu)?; // [batch, seq, d_model]
//! assert_eq!(packed.forward(&x)?.dims(), [2, 3, 64]);
//! # Ok::<(), candle_blocks::Error>(())
//! ```

mod activation;
mod attention_pool;
mod block;
mod block_feed_forward;
mod context;
mod dropout;
mod embeddings;
mod embeddings_and_head;
mod evaluation;
mod feed_forward;
mod grouped_experts;
mod linear;
mod low_rank;
mod mask;
mod mixer;
mod mlp;
mod moe;
mod norm;
pub(crate) mod own;
#[doc(hidden)]
pub mod packed;
mod padding_mask;
mod parameter_source;
mod pass;
mod position;
mod readout;
mod routing;
mod similarity;
mod stack;
mod state;
mod sublayer;
#[doc(hidden)]
pub mod visit;

#[doc(hidden)]
pub use crate::ops::parallel::Communicator;
#[doc(hidden)]
pub use crate::ops::{Packed, Partial, RankOf, Ranks, Stored, StoredMatrix, Weight, mark_parts};
pub use attention_pool::AttentionPool;
pub use block::{BlockStages, TransformerBlock};
pub use block_feed_forward::BlockFeedForward;
pub use context::{EncoderOutput, ForwardContext};
#[doc(hidden)]
pub use dropout::Snapshot;
pub use dropout::{Dropout, DropoutSource, DropoutUnit};
pub use embeddings::{Embeddings, PatchEmbeddings, SpectrumEmbeddings, TokenEmbeddings, Tokens};
#[doc(hidden)]
pub use embeddings_and_head::EmbeddingsAndHead;
pub use evaluation::Evaluation;
pub use feed_forward::FeedForward;
pub use linear::Linear;
#[doc(hidden)]
pub use linear::torch_bound;
#[doc(hidden)]
pub use low_rank::LowRank;
pub use mask::AttentionMask;
#[doc(hidden)]
pub use mask::KeySource;
pub(crate) use mask::check_additive;
pub(crate) use mixer::QueryKeyNorms;
pub use mixer::{
    Attention, GatedDeltaNet, HybridHeads, LatentProjections, LightningAttention, Mamba, Mamba2,
    Mixer, QueryKeyValue, RgLru, ShortConvolution,
};
pub use mlp::Mlp;
pub use moe::MixtureOfExperts;
pub use norm::Norm;
pub use own::Xielu;
#[doc(hidden)]
pub use parameter_source::ParameterBackend;
pub use parameter_source::ParameterSource;
pub(crate) use pass::{AlibiKey, Memo, TemperatureKey};
#[doc(hidden)]
pub use pass::{KeysAndValues, Origin, Pass};
pub(crate) use position::DistanceRows;
#[doc(hidden)]
pub use position::RotaryTables;
pub use position::{RelativeBias, RelativeEmbeddings};
#[doc(hidden)]
pub use readout::BlocksOutput;
pub use readout::Readout;
pub(crate) use routing::{Routing, among_near, choose_experts};
#[doc(hidden)]
pub use routing::{best, has_gradient};
#[doc(hidden)]
pub use similarity::Similarity;
pub(crate) use stack::SharedParts;
pub use stack::Stack;
pub use state::KvCache;
#[doc(hidden)]
pub use state::of_sequences;
pub(crate) use sublayer::BranchScale;
pub use sublayer::{Sublayer, SublayerNorm, SublayerStages};
