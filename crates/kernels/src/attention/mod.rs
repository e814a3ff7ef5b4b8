//! Multi-head attention, `softmax(scale · q·kᵀ + biases)·v`, and the KV cache.

mod attend;
mod attention_kernel;
mod bias;
mod cache;
mod chunk;
mod differentiable;
mod divide;
mod exp;
mod exponentiate;
mod fill;
mod head_rows;
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
mod relative;
mod score;
mod tile_memory;
#[cfg(target_arch = "x86_64")]
mod tiles;

pub use attend::attend;
use attention_kernel::{AttentionKernel, WithAttentionKernel};
pub use bias::{Bias, BiasLayout};
pub use cache::{KeyValuePanels, PanelShape};
use chunk::{Chunk, Layout, Values};
pub use differentiable::{AttentionGradients, Differentiable, Dropped, ScoreBias, Written};
use divide::DivideTotals;
use exponentiate::Exponentiate;
use fill::Fill;
pub use head_rows::HeadRows;
pub use heads::{Heads, Sequences, Shape};
pub use key_value::KeyValue;
use mask::KeyMask;
pub use mask::{Origin, Scoring};
use near_tile::NearTile;
pub use operand::OperandFormat;
use operand::{Operand, OperandDots};
use pack_queries::PackQueries;
use plan::{Group, TilePlan};
use query_rows::QueryRows;
pub use relative::{ContentOf, RelativeScores, RelativeTerm};
use relative::{RelativeProducts, TermGradients};
use score::Score;
use tile_memory::TileMemory;

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
