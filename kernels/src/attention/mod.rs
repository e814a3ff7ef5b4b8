//! `softmax(scale · q·kᵀ + biases)·v` of all heads, and the cache of keys and values.

mod attend;
mod attention_kernel;
mod cache;
mod chunk;
mod differentiable;
mod divide;
mod exp;
mod exponentiate;
mod fill;
mod heads;
mod key_value;
mod mask;
mod near_tile;
mod operand;
mod pack_queries;
mod plan;
mod query_rows;
mod query_tile;
mod recomputed;
mod score;
mod tile_memory;

pub use attend::attend;
pub use cache::{KeyValuePanels, PanelShape};
pub use differentiable::{AttentionGradients, Differentiable, Dropped, HeadRows, ScoreBias};
pub use heads::{Heads, Sequences, Shape};
pub use key_value::KeyValue;
pub use mask::{Bias, Scoring};
pub use operand::OperandFormat;

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
