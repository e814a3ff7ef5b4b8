//! Images: pixels from a file, in the size and range that a model reads.
//!
//! [`Image::open`] decodes a file, and [`Preprocessing`] makes the values that a model reads. Both give what transformers' image
//! processors give, with either library on which these rest ([`Backend`]).

mod backend;
mod crop;
mod decode;
mod filter;
mod floats;
mod image;
mod jpeg;
mod nearest;
mod preprocessing;
mod resize;
mod size;
mod taps;
mod transparent;

pub use backend::Backend;
pub use filter::Filter;
pub use image::Image;
pub use preprocessing::{Order, Pixels, Preprocessing, TransparentColor};
pub use resize::resize;
pub use size::{Size, TargetSize};
