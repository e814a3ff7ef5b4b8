//! Layers of a single model family. Each family has a file or a folder. Other layers call it, but do not know its parts.

pub(crate) mod gemma;
pub(super) mod sparse_mixer;
pub(super) mod unit_rows;
mod xielu;

pub use xielu::Xielu;
