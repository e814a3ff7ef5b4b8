//! Products in tile registers ([`Tiles`](crate::vectors::tiles::Tiles)).
//!
//! **Blocks.** A result block is one row tile times a panel's two column tiles. It has two sums, a row tile and a
//! column tile, which is loaded twice. On Intel CPUs, 2 x 2 tiles would load less. But another program on the same
//! core slows tiles down, and more so if more registers are in use: 2 x 2 lost 64 % and 1 x 2 lost 40 %, from 50 and
//! 45 % of peak. The last rows, fewer than a tile's, have separate registers with that many rows, so that both
//! shapes are configured at once. Their registers are zeroed after each use, because their contents affect the
//! speed.
//!
//! **Loop order.** The same as in [`multiply`](super::multiply). A panel chunk, 16 KiB, stays in the L1 cache while
//! the rows' tiles come from the L2 cache. Each block prefetches its share of the next chunk into L2. Row blocks are
//! larger than for vectors ([`Blocking::OF_TILES`](super::blocks::Blocking)): tiles multiply so fast that reading a
//! weight from L3 is the bottleneck.
//!
//! **Summation order.** Each 32 consecutive `k` are summed by
//! [`multiply_add`](crate::vectors::tiles::Tiles::multiply_add), and these sums are added one by one to a sum that
//! starts at zero. Missing values at the end are zeros. Chunks and the row count have no influence. The bits differ
//! from other instruction sets'.
//!
//! **Layout.** Rows are packed as for [`Avx512Bf16`](crate::vectors::avx512::Avx512Bf16), so that a block may begin
//! at any row. Panels are rearranged into the order in which tiles are loaded:
//!
//! ```text
//! panel 16 words of columns 0..16 16 words of columns 16..32 k = 0..32
//!          16 words of columns 0..16   16 words of columns 16..32    k = 32..64
//!          ..                          (fewer words at the end)
//! ```
//!
//! **int8** products have the same bits and packed operands as on all other instruction sets, because integers are
//! exact. Each 128 values have their own scale, so that sums leave the tiles after every second product. A prototype
//! with 2 x 2 blocks reached 17 to 19 % of int8's peak (11 % beside a busy hyperthread). bfloat16 tiles reach 22 %
//! of that peak (14 %), and VNNI, at two instructions per cycle, is limited to 12 %. Reading half as much partly
//! makes up for the difference to bfloat16. Widening weights to bfloat16 would keep sums in the tiles, but requires
//! separate rows and blocks, and gives up the bits that other instruction sets share. Few rows, which are bound by
//! reading, are left to VNNI.

mod bytes;
mod kernel;
mod level;
mod registers;
mod sums;

pub use level::{TileKernel, TileLevel};
use registers::{Block, Configured, PANEL, Rest, Whole, configured};
use sums::{Order, Sums, TileFormat};
