//! Layers of a single model family. Each family has a folder, which other layers call but whose parts they do not
//! know.

pub(crate) mod gemma;
