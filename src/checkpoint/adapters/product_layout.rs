//! The orientation of an adapter's product beside the tensor that it changes.

/// The orientation in which the factors' product is added to the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProductLayout {
    /// `B·A`, `[d_out, d_in]`: a linear layer or a convolution.
    OutIn,
    /// `(B·A)ᵀ`: a `Conv1D` or an embedding.
    InOut,
}
