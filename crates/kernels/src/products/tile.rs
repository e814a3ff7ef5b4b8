//! Tile dimensions. A tile is the product block whose sums a micro-kernel keeps in registers while it processes one
//! depth chunk.
//!
//! The micro-kernels are [`DotTiles`](super::dot_tile::DotTiles), for packed operands, and
//! [`InPlaceTile`](super::in_place::InPlaceTile), for an unpacked right operand.

use crate::vectors::MAX_LANES;

/// Values along `k` that are summed in registers before they are added to the total. It defines every result: see
/// [`multiply`](super::multiply) for the summation order.
pub const CHUNK: usize = 128;

/// Tile width in vectors. With two, each broadcast left element feeds two multiply-adds.
pub const WIDTH: usize = 2;

/// Columns in the widest panel on any instruction set.
pub const MAX_PANEL: usize = WIDTH * MAX_LANES;

/// Bytes at the start of the next panel that are prefetched while a panel's results are written.
pub const NEXT_PANEL: usize = 2 << 10;

/// The total that a chunk's sums are added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// No total yet: the first chunk's sums become the total.
    New,
    /// The preceding chunks' total.
    Running,
}

impl Total {
    /// Returns the total for chunk number `chunk`, if this is the first one's.
    pub fn of_chunk(self, chunk: usize) -> Self {
        match chunk {
            0 => self,
            _ => Self::Running,
        }
    }
}
