//! Trainable layers on any device. Each is made by `new(&config, vb)`, by `from_parts(..)`, or by a
//! [`Checkpoint`](crate::Checkpoint).
//!
//! Layers without dropout implement candle's `Module`. Layers with dropout implement `ModuleT`, so
//! that generic code cannot lose the training flag, and have an inherent `forward` for evaluation;
//! inside a `candle_nn::seq()` they go as `add_fn(move |x| layer.forward(x))`.

mod activation;
mod attention;
mod block;
mod context;
mod dropout;
mod feed_forward;
mod linear;
mod mask;
mod mlp;
mod norm;
mod stack;
mod sublayer;

pub use attention::{Attention, QueryKeyValue};
pub use block::{BlockStages, TransformerBlock};
pub use context::ForwardContext;
pub use dropout::{Dropout, DropoutSource};
pub use feed_forward::FeedForward;
pub use linear::{Linear, LinearInit};
pub use mask::AttentionMask;
pub use mlp::Mlp;
pub use norm::Norm;
pub use stack::Stack;
pub use sublayer::{Sublayer, SublayerNorm, SublayerStages};
