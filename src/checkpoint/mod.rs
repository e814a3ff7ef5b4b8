//! Files on disk, or on the Hugging Face Hub, made into layers.

pub mod files;
#[cfg(feature = "hub")]
pub mod hub;
pub mod write;
