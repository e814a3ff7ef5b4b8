//! A block's sums: initialized, added to in steps of a tile's words, and stored.

use std::marker::PhantomData;

use half::bf16;

use super::{Block, PANEL, Rest, configured};
use crate::products::WIDTH;
use crate::vectors::prefetch::{self, LINE};
use crate::vectors::tiles::{RIGHT, TILE, TILE_ROW, Tiles};

/// A format that tiles multiply.
pub trait TileFormat {
    /// Adds two tiles' product to a third tile.
    ///
    /// # Safety
    /// Same as for [`Tiles`].
    unsafe fn multiply_add<T: Tiles>(tiles: T, sums: usize, left: usize);
}

impl TileFormat for bf16 {
    #[inline(always)]
    unsafe fn multiply_add<T: Tiles>(tiles: T, sums: usize, left: usize) {
        // SAFETY: the caller's promise.
        unsafe { tiles.multiply_add(sums, left) };
    }
}

impl TileFormat for i8 {
    #[inline(always)]
    unsafe fn multiply_add<T: Tiles>(tiles: T, sums: usize, left: usize) {
        // SAFETY: the caller's promise.
        unsafe { tiles.multiply_add_bytes(sums, left) };
    }
}

/// Bytes between rows of a panel's sums.
const PANEL_ROW: usize = PANEL * size_of::<u32>();

/// How a step's words are ordered in a panel.
#[derive(Clone, Copy)]
pub enum Order {
    /// One tile after the other, as `Kernel::arrange` produces.
    Tiles,
    /// All columns' first words, then their next words.
    Words,
}

/// The strides between a step's words.
pub struct Places {
    /// Words between a column's consecutive words.
    pub word: usize,
    /// Words between a panel's first half of columns and its second.
    pub half: usize,
}

impl Order {
    /// Returns the strides in a step with `words` words.
    #[inline(always)]
    pub fn places(self, words: usize) -> Places {
        match self {
            Self::Tiles => Places {
                word: TILE,
                half: words * TILE,
            },
            Self::Words => Places {
                word: PANEL,
                half: TILE,
            },
        }
    }
}

/// A block's sums, in registers.
pub struct Sums<T, B, F> {
    tiles: T,
    rows: usize,
    /// Words between packed rows.
    row_words: usize,
    of: PhantomData<(B, F)>,
}

impl<T: Tiles, B: Block, F: TileFormat> Sums<T, B, F> {
    /// Initializes the sums with zeros, or with the words `from`, `[rows, PANEL]`. Rows are `row_words` apart.
    ///
    /// # Panics
    /// If the thread's tiles are not configured for blocks with this many rows.
    #[inline(always)]
    pub fn begin(tiles: T, (rows, row_words): (usize, usize), from: Option<&[u32]>) -> Self {
        let configured = configured::<B>();
        assert_eq!(
            rows, configured,
            "the tiles are configured for another number of rows"
        );
        // SAFETY: the tiles are configured for `rows` rows, which `from` has.
        unsafe {
            match from {
                None => {
                    tiles.zero(B::SUMS[0]);
                    tiles.zero(B::SUMS[1]);
                }
                Some(from) => {
                    let from = from[..rows * PANEL].as_ptr();
                    tiles.load(B::SUMS[0], from, PANEL_ROW);
                    tiles.load(B::SUMS[1], from.add(TILE), PANEL_ROW);
                }
            }
        }
        Self {
            tiles,
            rows,
            row_words,
            of: PhantomData,
        }
    }

    /// Stores the sums as `[rows, PANEL]`.
    #[inline(always)]
    pub fn end(self, to: &mut [u32]) {
        let (tiles, to) = (self.tiles, to[..self.rows * PANEL].as_mut_ptr());
        // SAFETY: sums exist where their tiles are configured; `to` has as many rows.
        unsafe {
            tiles.store(B::SUMS[0], to, PANEL_ROW);
            tiles.store(B::SUMS[1], to.add(TILE), PANEL_ROW);
            if B::LEFT == Rest::LEFT {
                tiles.zero(B::SUMS[0]);
                tiles.zero(B::SUMS[1]);
                tiles.zero(B::LEFT);
            }
        }
    }

    /// Adds products of rows and a panel, `words` words each. Each step, one tile's words, prefetches `lines` cache
    /// lines, starting at `ahead`.
    #[inline(always)]
    pub fn add(
        &self,
        a: &[u32],
        b: &[u32],
        words: usize,
        order: Order,
        (ahead, lines): (*const u8, usize),
    ) {
        let row_words = self.row_words;
        let (steps, rest) = (words / TILE, words % TILE);
        assert!(words <= row_words && a.len() >= (self.rows - 1) * row_words + words);
        assert!(b.len() >= words * PANEL);
        for step in 0..steps {
            let a = a.as_ptr().wrapping_add(step * TILE);
            let b = b.as_ptr().wrapping_add(step * TILE * PANEL);
            // SAFETY: by the assertions above, `a` and `b` hold all rows' and both tiles' words.
            unsafe { self.step(a, row_words * size_of::<u32>(), b, order) };
            for line in step * lines..(step + 1) * lines {
                prefetch::far(ahead.wrapping_add(line * LINE));
            }
        }
        if rest > 0 {
            // Zeros after the last words, where memory holds another row, or ends.
            let (a, b) = (&a[steps * TILE..], &b[steps * TILE * PANEL..]);
            let (mut rows, mut columns) = ([0; TILE * TILE], [0; TILE * PANEL]);
            for (i, to) in rows.chunks_exact_mut(TILE).enumerate().take(self.rows) {
                to[..rest].copy_from_slice(&a[i * row_words..][..rest]);
            }
            let (from, to) = (order.places(rest), Order::Tiles.places(TILE));
            for half in 0..WIDTH {
                for word in 0..rest {
                    let columns = &mut columns[half * to.half + word * to.word..][..TILE];
                    columns.copy_from_slice(&b[half * from.half + word * from.word..][..TILE]);
                }
            }
            // SAFETY: a whole row tile, and two column tiles.
            unsafe { self.step(rows.as_ptr(), TILE_ROW, columns.as_ptr(), Order::Tiles) };
        }
    }

    /// Adds products of a row tile, with rows `stride` bytes apart, and two column tiles.
    ///
    /// # Safety
    /// A row tile can be read at `a`, and two whole tiles at `b`.
    #[inline(always)]
    unsafe fn step(&self, a: *const u32, stride: usize, b: *const u32, order: Order) {
        let tiles = self.tiles;
        let Places { word, half } = order.places(TILE);
        let b_stride = word * size_of::<u32>();
        // SAFETY: the caller's promise; sums exist where their tiles are configured.
        unsafe {
            tiles.load(B::LEFT, a, stride);
            tiles.load(RIGHT, b, b_stride);
            F::multiply_add(tiles, B::SUMS[0], B::LEFT);
            tiles.load(RIGHT, b.add(half), b_stride);
            F::multiply_add(tiles, B::SUMS[1], B::LEFT);
        }
    }
}
