//! Weights that Python wrote: PyTorch's zip archives with their pickles, NumPy's arrays, and formats that are only recognized.

pub(crate) mod foreign;
#[doc(hidden)]
pub mod native;
pub(crate) mod numpy;
mod pickle;
pub(crate) mod torch;
pub(crate) mod zip;
