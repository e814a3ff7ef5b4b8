//! The working memory of products.

use crate::memory::scratch::scratch;

scratch! {
    /// Totals of a tile, columns packed on the way, and results that are packed next.
    pub TILE
}

scratch! {
    /// Packed rows, or columns on their way into a panel.
    pub PACKED
}

scratch! {
    /// A result that is the next product's left operand; or a right operand that is packed for one product.
    pub HIDDEN
}
