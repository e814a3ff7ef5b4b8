//! Working memory for products.

use crate::memory::scratch::scratch;

scratch! {
    /// A tile's totals, columns packed on demand, and results to be packed.
    pub TILE
}

scratch! {
    /// Packed rows, or columns that are about to be copied to a panel.
    pub PACKED
}

scratch! {
    /// A result that is the next product's left operand, or a right operand that is packed for one product.
    pub HIDDEN
}
