//! Tile registers: eight registers with up to 16 rows, 16 words each, and their instructions.
//!
//! A thread first configures its tile shapes. There are two implementations: Intel's instructions
//! ([`Amx`](super::amx::Amx)), and plain Rust with the same bits
//! ([`AmxEmulated`](super::amx_emulated::AmxEmulated)), so that code over [`Tiles`] can be tested on CPUs without
//! them.

/// The maximum row count in a tile, and the words per row.
pub const TILE: usize = 16;

/// Bytes per tile row.
pub const TILE_ROW: usize = 4 * TILE;

/// Tile register count.
pub const TILES: usize = 8;

/// The tile that holds [`Tiles::multiply_add`]'s right operand.
pub const RIGHT: usize = 6;

/// A thread's tile shapes, in the format for `ldtilecfg` and `sttilecfg`.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileShapes {
    /// 1, or 0 if no tiles are configured.
    palette: u8,
    /// The row at which an interrupted load resumes.
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileShapes {
    /// No tiles.
    pub const NONE: Self = Self {
        palette: 0,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };

    /// Creates tiles with [`TILE`] words per row, given their row counts.
    pub fn of_rows(rows: [u8; TILES]) -> Self {
        let mut shapes = Self {
            palette: 1,
            ..Self::NONE
        };
        for (tile, rows) in rows.into_iter().enumerate().filter(|(_, rows)| *rows > 0) {
            assert!(usize::from(rows) <= TILE);
            shapes.rows[tile] = rows;
            shapes.row_bytes[tile] = TILE_ROW as u16;
        }
        shapes
    }

    /// Returns whether there are tiles.
    pub fn is_some(&self) -> bool {
        self.palette != 0
    }

    /// Returns a tile's row count, 0 if it is not configured.
    pub fn rows(&self, tile: usize) -> usize {
        self.rows[tile].into()
    }
}

/// Tile instructions for the calling thread's registers. Holding a value proves that the CPU has them.
///
/// # Safety
/// A tile is an index below [`TILES`]. All methods except `configure`, `shapes` and `release` require that the
/// calling thread has configured the tiles that they name, with [`TILE`] words per row. [`RIGHT`] has [`TILE`] rows,
/// and a product's sums and left operand have equal row counts.
pub trait Tiles: Copy + Send + Sync + 'static {
    /// Configures the thread's tiles with these shapes, and clears them.
    ///
    /// # Safety
    /// The shapes are from [`TileShapes::of_rows`] or [`Self::shapes`].
    unsafe fn configure(self, shapes: &TileShapes);

    /// Returns the thread's tile shapes.
    fn shapes(self) -> TileShapes;

    /// Releases the thread's tiles.
    fn release(self);

    /// Fills a tile with zeros.
    ///
    /// # Safety
    /// Same as for the trait.
    unsafe fn zero(self, tile: usize);

    /// Loads a tile whose rows are `stride` bytes apart.
    ///
    /// # Safety
    /// Same as for the trait; the rows can be read.
    unsafe fn load(self, tile: usize, from: *const u32, stride: usize);

    /// Stores a tile to rows `stride` bytes apart.
    ///
    /// # Safety
    /// Same as for the trait; the rows can be written.
    unsafe fn store(self, tile: usize, to: *mut u32, stride: usize);

    /// Computes `sums + left · right` in f32 for bfloat16 operands, where `right` is tile [`RIGHT`]. A word holds
    /// the values for `2k` and `2k + 1` in a row of `left`, or in a column of `right`.
    ///
    /// For each sum, products for even `k` are added one after the other to a zero, each with one rounding; products
    /// for odd `k` likewise. Then both are added to each other, and the result to the sum. Subnormal operands and
    /// results become zeros with their sign, and rounding is to nearest, ties to even.
    ///
    /// # Safety
    /// Same as for the trait.
    unsafe fn multiply_add(self, sums: usize, left: usize);

    /// Computes `sums + left · right` in wrapping 32-bit integers, for signed bytes in `left` and unsigned bytes in
    /// `right`. A word holds four consecutive values in a row of `left`, or in a column of `right`.
    ///
    /// # Safety
    /// Same as for the trait.
    unsafe fn multiply_add_bytes(self, sums: usize, left: usize);
}
