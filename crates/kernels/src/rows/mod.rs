//! Elementwise and row-wise operations, and sums over rows.

pub mod activation;
pub mod adamw;
mod chacha;
pub mod convolution;
pub mod cross_entropy;
mod dropout;
pub mod elements;
pub mod norm;
pub mod rotary;
pub mod softmax;
pub(crate) mod source;
pub mod squared_error;
mod sums;

pub use activation::{ActivationFunction, Xielu};
pub use dropout::{draw_mask, dropout};
pub use norm::Norm;
pub use source::{RowNorm, Source};
pub use sums::column_sums;
