//! Files on disk, or on the Hugging Face Hub, made into layers.

#[cfg(feature = "hub")]
pub mod hub;
