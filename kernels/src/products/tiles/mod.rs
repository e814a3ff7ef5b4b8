//! Products in tile registers ([`Tiles`](crate::vectors::tiles::Tiles)): the kernel of a level whose unit is a tile.
//!
//! **Blocks.** A block of the result is one tile of rows by the two tiles of a panel's columns: two sums, a tile of rows and
//! one of columns, which is loaded twice. On Intel's CPUs two by two would load less, but what slows tiles most is another
//! program on the same core, and the more so the more registers are in use: 2 x 2 lost 64 % by it and 1 x 2 40 %, of 50 and 45 %
//! of the peak. The last rows, fewer than a tile's, have registers of their own with that many rows, so that both shapes are
//! configured at once; they are zeroed behind each use, as what they hold would count.
//!
//! **The order of work** is that of [`multiply`](super::multiply). A chunk of a panel, 16 KiB, stays in the first-level cache
//! while the rows' tiles pass from the second; each block prefetches its share of the next chunk into the second. Blocks of
//! rows are larger than those of vectors ([`Blocking::OF_TILES`](super::blocks::Blocking)): tiles multiply so fast that reading
//! a weight from the third-level cache is what takes long.
//!
//! **The order of addition** is a property of the level: that of [`multiply_add`](crate::vectors::tiles::Tiles::multiply_add) for each 32 terms from the first on, whose
//! sums are added one by one, first to last, to a zero. Terms behind the last count as zeros. Neither chunks nor the number
//! of rows enter. The bits differ from other levels'.
//!
//! **Layout.** Rows are packed as for [`Avx512Bf16`](crate::vectors::avx512::Avx512Bf16), so that a block may begin at any
//! row. A panel is brought into the order in which its tiles are loaded:
//!
//! ```text
//! panel    16 words of columns 0..16   16 words of columns 16..32    terms 0..32
//!          16 words of columns 0..16   16 words of columns 16..32    terms 32..64
//!          ..                          (fewer words at the end)
//! ```
//!
//! **int8** has the bits of all other levels, as integers are exact, and their packed operands. A group of 128 terms has a scale
//! of its own, so that sums leave the tiles behind every second product. A prototype with blocks of 2 x 2 reached 17 to 19 % of
//! int8's peak (11 % beside a busy neighbour), where bfloat16's tiles reach 22 % of it (14 %), and VNNI, at two instructions a
//! cycle, has its limit at 12 %. Reading half as much makes up for some of what is lost to bfloat16. To widen weights to
//! bfloat16 would keep sums in the tiles, but takes a second kind of rows and blocks, and gives up the bits of other levels. Few
//! rows, which take as long as reading, are left to VNNI.

mod bytes;
mod kernel;
mod level;
mod registers;
mod sums;

pub use level::{TileKernel, TileLevel};
use registers::{Block, Configured, PANEL, Rest, Whole, configured};
use sums::{Order, Sums, TileFormat};
