//! Position embeddings inside attention: rotary embeddings, ALiBi, learned relative biases.

mod alibi;
mod relative_bias;
mod relative_biases;
mod relative_embeddings;
mod rotary;

pub use alibi::{alibi_bias, alibi_on_both_sides};
pub use relative_bias::RelativeBias;
pub(crate) use relative_biases::RelativeBiases;
pub(crate) use relative_embeddings::DistanceRows;
pub use relative_embeddings::RelativeEmbeddings;
pub use rotary::RotaryTables;
