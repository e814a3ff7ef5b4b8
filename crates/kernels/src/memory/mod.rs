//! Memory that is aligned, on large pages, or kept between calls.

pub(crate) mod large_pages;
pub(crate) mod recycled;
pub(crate) mod scratch;

pub use large_pages::{LargePages, is_there, tried_in_a_pass};
pub use recycled::{Buffer, Keeper, Recycled, give_back};
pub use scratch::{Aligned, Scratch, lend};
