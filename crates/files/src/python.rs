//! Weights that Python wrote: PyTorch's zip archives with their pickles, and NumPy's arrays. Those of other programs are refused.

#[doc(hidden)]
pub mod native;
pub(crate) mod numpy;
mod pickle;
pub(crate) mod torch;
mod torch_functions;
pub(crate) mod zip;
