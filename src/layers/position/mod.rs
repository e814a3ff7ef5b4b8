//! Position embeddings inside attention: rotary embeddings, ALiBi, learned relative biases.

mod alibi;
mod relative_bias;
mod relative_biases;
mod rotary;

pub use alibi::alibi_bias;
pub use relative_bias::RelativeBias;
pub(crate) use relative_biases::RelativeBiases;
pub use rotary::RotaryTables;
