//! `softmax(scale · q·kᵀ + biases)·v` of all heads, and the cache of keys and values.

mod attend;
mod cache;
mod chunk;
mod differentiable;
mod exp;
mod fill;
mod heads;
mod attention_kernel;
mod key_value;
mod mask;
mod operand;
mod plan;
mod exponentiate;
mod score;
mod query_tile;
mod query_rows;
mod near_tile;
mod pack_queries;
mod divide;
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
