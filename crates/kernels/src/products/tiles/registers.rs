//! Assigns tile registers to blocks, and configures them.

use std::cell::Cell;

use crate::products::WIDTH;
use crate::vectors::tiles::{RIGHT, TILE, TILES, TileShapes, Tiles};

/// Panel columns: two tiles.
pub const PANEL: usize = WIDTH * TILE;

/// A block's registers. A type, so that registers are constants in each instruction.
pub trait Block {
    /// The sums in the block's two tiles.
    const SUMS: [usize; WIDTH];
    /// The row tile.
    const LEFT: usize;
}

/// A block with [`TILE`] rows.
pub struct Whole;

impl Block for Whole {
    const SUMS: [usize; WIDTH] = [0, 1];
    const LEFT: usize = 4;
}

/// A block with fewer rows.
pub struct Rest;

impl Block for Rest {
    const SUMS: [usize; WIDTH] = [2, 3];
    const LEFT: usize = 5;
}

/// Returns the shapes of all registers, for blocks with [`TILE`] rows and with `rest` rows.
fn shapes(rest: usize) -> TileShapes {
    let mut rows = [0; TILES];
    for tile in Whole::SUMS.into_iter().chain([Whole::LEFT, RIGHT]) {
        rows[tile] = TILE as u8;
    }
    for tile in Rest::SUMS.into_iter().chain([Rest::LEFT]) {
        rows[tile] = rest as u8;
    }
    TileShapes::of_rows(rows)
}

thread_local! {
    /// The rows in a [`Rest`] block that this thread's tiles are configured for, while they are.
    static CONFIGURED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// A guard while the thread's tiles have block shapes. Dropping it restores the previous configuration, because
/// other code may rely on tiles that it configured (candle does so once for each thread). Tile contents are not
/// restored.
pub struct Configured<T: Tiles> {
    tiles: T,
    before: (Option<usize>, TileShapes),
}

impl<T: Tiles> Configured<T> {
    /// Configures tiles for blocks with [`TILE`] rows and with `rest` rows.
    pub fn new(tiles: T, rest: usize) -> Self {
        let before = (CONFIGURED.replace(Some(rest)), tiles.shapes());
        // SAFETY: shapes of `of_rows`.
        unsafe { tiles.configure(&shapes(rest)) };
        Self { tiles, before }
    }
}

impl<T: Tiles> Drop for Configured<T> {
    fn drop(&mut self) {
        let (rest, shapes) = self.before;
        CONFIGURED.set(rest);
        if shapes.is_some() {
            // SAFETY: shapes that the thread had before.
            unsafe { self.tiles.configure(&shapes) };
        } else {
            self.tiles.release();
        }
    }
}

/// Returns how many rows the thread's tiles are configured for in this block type.
///
/// # Panics
/// If the tiles are not configured.
#[inline(always)]
pub fn configured<B: Block>() -> usize {
    let rest = CONFIGURED.get().expect("the tiles are not configured");
    if B::LEFT == Whole::LEFT { TILE } else { rest }
}
