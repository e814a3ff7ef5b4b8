//! Tile registers: eight, each of up to 16 rows of 16 words, and the instructions for them.
//!
//! A thread first configures the shapes of its tiles. Two implementations: Intel's instructions ([`Amx`](super::amx::Amx)),
//! and plain Rust that gives the same bits ([`AmxEmulated`](super::amx_emulated::AmxEmulated)), so that whatever is written
//! over [`Tiles`] can be tested on CPUs without them.

/// The most rows of a tile, and the words of a row.
pub const TILE: usize = 16;

/// Bytes of a row of a tile.
pub const TILE_ROW: usize = 4 * TILE;

/// Tile registers.
pub const TILES: usize = 8;

/// The tile that [`Tiles::multiply_add`] takes its right operand from.
pub const RIGHT: usize = 6;

/// The shapes of a thread's tiles, as `ldtilecfg` and `sttilecfg` take them.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileShapes {
    /// 1, or 0 where no tiles are configured.
    palette: u8,
    /// Where an interrupted load goes on.
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

    /// Tiles of so many rows of [`TILE`] words.
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

    /// Whether there are tiles.
    pub fn is_some(&self) -> bool {
        self.palette != 0
    }

    /// The rows of a tile; none if it is not configured.
    pub fn rows(&self, tile: usize) -> usize {
        self.rows[tile].into()
    }
}

/// The instructions of tiles, each on the calling thread's registers. A value is the proof that the CPU has them.
///
/// # Safety
/// Tiles are named by numbers below [`TILES`]. All but `configure`, `shapes` and `release` may be called only while the
/// calling thread has configured the tiles that they name, with rows of [`TILE`] words; [`RIGHT`] has [`TILE`] rows, and a
/// product's sums and left operand have as many rows as each other.
pub trait Tiles: Copy + Send + Sync + 'static {
    /// Gives the thread's tiles these shapes, and zeros.
    ///
    /// # Safety
    /// The shapes are from [`TileShapes::of_rows`] or [`Self::shapes`].
    unsafe fn configure(self, shapes: &TileShapes);

    /// The shapes that the thread's tiles have.
    fn shapes(self) -> TileShapes;

    /// Leaves the thread without tiles.
    fn release(self);

    /// Fills a tile with zeros.
    ///
    /// # Safety
    /// As for the trait.
    unsafe fn zero(self, tile: usize);

    /// Loads a tile whose rows are `stride` bytes apart.
    ///
    /// # Safety
    /// As for the trait; the rows can be read.
    unsafe fn load(self, tile: usize, from: *const u32, stride: usize);

    /// Stores a tile to rows `stride` bytes apart.
    ///
    /// # Safety
    /// As for the trait; the rows can be written.
    unsafe fn store(self, tile: usize, to: *mut u32, stride: usize);

    /// `sums + left · right` of bfloat16 in f32, `right` being tile [`RIGHT`]. A word holds terms `2k` and `2k + 1` of a row
    /// of `left`, or of a column of `right`.
    ///
    /// For each sum, the even terms' products are added one after the other, first to last, to a zero, each with one
    /// rounding; the odd terms' likewise; then both to each other, and the result to the sum. Subnormal numbers count as
    /// zeros of their sign, as operands and as results, and rounding is to nearest, ties to even.
    ///
    /// # Safety
    /// As for the trait.
    unsafe fn multiply_add(self, sums: usize, left: usize);

    /// `sums + left · right` of bytes in 32-bit integers, which wrap around: signed bytes of `left`, unsigned ones of `right`. A
    /// word holds four consecutive terms of a row of `left`, or of a column of `right`.
    ///
    /// # Safety
    /// As for the trait.
    unsafe fn multiply_add_bytes(self, sums: usize, left: usize);
}
