//! Trainable layers for any device. Each is created by `new(&config, vb)` or by a [`Checkpoint`](crate::Checkpoint); linear
//! layers, norms, feed-forwards and perceptrons also by `from_parts(..)`. A configuration is checked where it becomes a layer.
//!
//! Layers without dropout implement candle's `Module`. Layers with dropout implement `ModuleT` instead,
//! so that generic code cannot lose the training flag, and have an inherent `forward` for evaluation;
//! [`Evaluation`] makes a `Module` of them.

mod activation;
mod attention;
mod attention_pool;
mod block;
mod block_feed_forward;
mod cached_rows;
mod context;
mod dropout;
mod embeddings;
mod ends;
mod evaluation;
mod feed_forward;
mod grouped_experts;
mod kv_cache;
mod ledger;
mod linear;
mod low_rank;
mod marks;
mod mask;
mod mlp;
mod moe;
mod norm;
pub(crate) mod own;
mod pass;
mod position;
mod readout;
mod routing;
mod similarity;
mod sparse_mixer;
mod stack;
mod sublayer;
pub(crate) mod visit;
mod xielu;

pub(crate) use crate::ops::parallel::Communicator;
pub(crate) use crate::ops::{Partial, Ranks, StoredMatrix, with_stored};
pub(crate) use attention::QueryKeyNorms;
pub use attention::{Attention, LatentProjections, QueryKeyValue};
pub use attention_pool::AttentionPool;
pub use block::{BlockStages, TransformerBlock};
pub use block_feed_forward::BlockFeedForward;
pub(crate) use cached_rows::of_sequences;
pub use context::{ForwardContext, Memory};
pub(crate) use dropout::Snapshot;
pub use dropout::{Dropout, DropoutSource, DropoutUnit};
pub(crate) use embeddings::WeightRows;
pub use embeddings::{Embeddings, PatchEmbeddings, SpectrumEmbeddings, TokenEmbeddings, Tokens};
pub use ends::ModelEnds;
pub use evaluation::Evaluation;
pub use feed_forward::FeedForward;
pub use kv_cache::KvCache;
pub(crate) use ledger::{Ledger, check_cached};
pub use linear::Linear;
pub(crate) use linear::torch_bound;
pub use low_rank::LowRank;
pub(crate) use marks::Marks;
pub use mask::AttentionMask;
pub(crate) use mask::{Marked, check_additive};
pub use mlp::Mlp;
pub use moe::MixtureOfExperts;
pub use norm::Norm;
pub(crate) use pass::{AlibiKey, KeysAndValues, Memo, Pass, TemperatureKey};
pub(crate) use position::{DistanceRows, RelativeBiases};
pub use position::{RelativeBias, RelativeEmbeddings, RotaryTables};
pub use readout::{BlocksOutput, Readout};
pub(crate) use routing::{Routing, among_near, best, choose_experts, has_gradient};
pub use similarity::Similarity;
pub use stack::Stack;
pub(crate) use stack::{SharedParts, unread_words};
pub(crate) use sublayer::BranchScale;
pub use sublayer::{Sublayer, SublayerNorm, SublayerStages};
pub use xielu::Xielu;
