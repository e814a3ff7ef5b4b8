//! Which tile registers a block has, and their configuration.

use std::cell::Cell;

use crate::products::WIDTH;
use crate::vectors::tiles::{RIGHT, TILE, TILES, TileShapes, Tiles};

/// Columns of a panel: two tiles.
pub const PANEL: usize = WIDTH * TILE;

/// The registers of a block. A type, so that each instruction's are known where it is compiled.
pub trait Block {
    /// The sums of its two tiles.
    const SUMS: [usize; WIDTH];
    /// Its rows.
    const LEFT: usize;
}

/// A block of [`TILE`] rows.
pub struct Whole;

impl Block for Whole {
    const SUMS: [usize; WIDTH] = [0, 1];
    const LEFT: usize = 4;
}

/// A block of fewer rows.
pub struct Rest;

impl Block for Rest {
    const SUMS: [usize; WIDTH] = [2, 3];
    const LEFT: usize = 5;
}

/// The shapes of all registers, where blocks have [`TILE`] rows, or `rest`.
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
    /// The rows of a [`Rest`] that this thread's tiles are configured for, while they are.
    static CONFIGURED: Cell<Option<usize>> = const { Cell::new(None) };
}

/// While it lives, the thread's tiles have the shapes of blocks. Dropped, it leaves the thread as it was: others may rely on
/// tiles that they configured (candle does so once for each thread), though not on what these held.
pub struct Configured<T: Tiles> {
    tiles: T,
    before: (Option<usize>, TileShapes),
}

impl<T: Tiles> Configured<T> {
    /// For blocks of [`TILE`] rows, and of `rest`.
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

/// The rows that the thread's tiles are configured for in blocks of this kind.
///
/// # Panics
/// If they are not configured.
#[inline(always)]
pub fn configured<B: Block>() -> usize {
    let rest = CONFIGURED.get().expect("tiles that are not configured");
    if B::LEFT == Whole::LEFT { TILE } else { rest }
}
