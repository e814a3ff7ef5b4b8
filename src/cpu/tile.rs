//! The measures of a tile of the product, of which a micro-kernel holds the sums of one chunk in registers:
//! [`DotTile`](super::dot_tile::DotTile), and [`InPlaceTile`](super::gemv::InPlaceTile) where the right operand is in place.

/// Terms that are summed in registers before they are added to the total. Part of every result:
/// see [`gemm`](super::gemm) on the order of addition.
pub const CHUNK: usize = 128;

/// Vectors side by side in a tile. Two, so that one operand of a row serves two products.
pub const WIDTH: usize = 2;

/// What a chunk's sums are added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// Nothing: this is the first chunk.
    New,
    /// The total of the chunks before.
    Running,
}
