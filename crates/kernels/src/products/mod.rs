//! Matrix products in every format.

mod apply_epilogue;
mod blocks;
pub(crate) mod dot_tile;
mod epilogue;
pub(crate) mod format;
pub(crate) mod formats;
mod halves;
mod in_place;
pub(crate) mod kernel;
mod matrix;
mod multiply;
mod pack_panel;
mod pack_panels;
mod pack_quantized;
mod pack_row;
mod pack_rows;
mod packed_matrix;
mod packed_rows;
mod panel;
mod panel_pair;
mod peak;
mod product;
mod registers;
mod streams;
pub(crate) mod tile;
#[cfg(target_arch = "x86_64")]
pub(crate) mod tiles;
mod totals;
pub(crate) mod transpose;
mod unpack;
pub(crate) mod view;
mod weight;
mod widen;
mod working_memory;

use apply_epilogue::{ApplyEpilogue, ApplyEpilogueToPanels, Results};
use blocks::{Blocking, RowBlocks};
pub(crate) use dot_tile::{Ahead, DotTiles, Form, PanelChunk};
pub use epilogue::{Epilogue, GateClamp, Scale};
pub(crate) use format::{Dots, Format};
use format::{WidenedWords, dots, parts};
pub use formats::group_scales::{GroupScales, NON_LINEAR_ZERO, ScaleType};
use halves::Halves;
use in_place::InPlaceTile;
pub(crate) use kernel::Kernel;
use kernel::WithKernel;
pub use matrix::Matrix;
pub use multiply::{Added, multiply, multiply_rounded};
pub(crate) use multiply::{Plain, add_product, multiply_views};
use pack_panel::{PackByRows, PackPanel};
pub use pack_quantized::{QuantizedFormat, QuantizedWeightRows};
use pack_row::{PackRow, PackRows};
use packed_matrix::PackedMatrix;
use packed_rows::{Chunks, PackedRows, PackedTarget};
use panel_pair::PanelPairs;
pub use peak::peak;
use product::{Columns, Product, TaskRows, To};
use registers::Registers;
use tile::NEXT_PANEL;
pub(crate) use tile::{CHUNK, MAX_PANEL, Total, WIDTH};
pub(crate) use totals::Totals;
pub(crate) use transpose::PackColumns;
use unpack::UnpackColumn;
pub(crate) use view::View;
pub use weight::{PackedWeight, WeightFormat};
use widen::Widen;
use working_memory::{HIDDEN, PACKED, TILE};

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
