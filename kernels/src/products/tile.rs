//! The dimensions of a tile: the block of a product whose sums a micro-kernel keeps in registers while it adds
//! up one chunk of the depth.
//!
//! The micro-kernels are [`DotTile`](super::dot_tile::DotTile), for packed operands, and
//! [`InPlaceTile`](super::in_place::InPlaceTile), for a right operand that is read where it lies.

use crate::vectors::MAX_LANES;

/// Terms that are summed in registers before they are added to the running total. It is part of every result:
/// see [`multiply`](super::multiply) on the order of addition.
pub const CHUNK: usize = 128;

/// Width of a tile in vectors. Two, so that each broadcast element of the left operand feeds two multiply-adds.
pub const WIDTH: usize = 2;

/// Columns of the widest panel of any level.
pub const MAX_PANEL: usize = WIDTH * MAX_LANES;

/// Bytes at the start of the next panel that are prefetched while a panel's results are written.
pub const NEXT_PANEL: usize = 2 << 10;

/// What the sums of a chunk are added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// Nothing: this is the first chunk, whose sums become the total.
    New,
    /// The total of the preceding chunks.
    Running,
}

impl Total {
    /// For a chunk of this number.
    pub fn of_chunk(chunk: usize) -> Self {
        match chunk {
            0 => Self::New,
            _ => Self::Running,
        }
    }
}
