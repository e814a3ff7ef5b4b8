//! Whole models give what transformers gives.

#[path = "../shared/weights.rs"]
mod weights;

mod generation;
mod sampling;
#[cfg(feature = "text")]
mod text;
