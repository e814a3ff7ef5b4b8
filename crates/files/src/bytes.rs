//! Files as bytes, below all formats: read at positions or whole, told apart by how they begin, and described by a header.

pub(crate) mod foreign;
pub(crate) mod header;
pub(crate) mod limited;
pub(crate) mod positioned;
pub(crate) mod strided;
