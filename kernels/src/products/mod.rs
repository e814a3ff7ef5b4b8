//! Matrix products in every format.

mod blocks;
pub(crate) mod dot_tile;
mod epilogue;
mod finish;
pub(crate) mod format;
pub(crate) mod formats;
mod halves;
mod in_place;
pub(crate) mod kernel;
mod matrix;
mod multiply;
mod pack_panel;
mod pack_panels;
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
pub(crate) mod transpose;
pub(crate) mod view;
mod weight;
mod working_memory;

pub use epilogue::{Epilogue, Scale};
pub use matrix::Matrix;
pub use multiply::{Added, multiply};
pub(crate) use multiply::{Plain, multiply_views};
pub use peak::peak;
pub(crate) use view::View;
pub use weight::{PackedWeight, WeightFormat};

#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;
