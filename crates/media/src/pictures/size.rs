//! The size to which an image is resized.

use candle_blocks_base::{Error, Result};

use super::image::Image;

/// A size in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// The height.
    pub height: usize,
    /// The width.
    pub width: usize,
}

impl Size {
    /// Returns an image's size.
    pub fn of(image: &Image) -> Self {
        Self {
            height: image.height(),
            width: image.width(),
        }
    }
}

/// The size after resizing, as `size` in `preprocessor_config.json` says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TargetSize {
    /// One size for all images.
    Fixed(Size),
    /// The shorter edge's length; the proportions stay.
    ShortestEdge(usize),
    /// The shorter edge's length, unless the longer one would be longer than the second length.
    Edges(usize, usize),
    /// The size in which the image just fits; the proportions stay.
    Within(Size),
    /// The largest size with at most this many square patches, in which each edge is a multiple of a patch's: NaFlex.
    Patches {
        /// A patch's edge.
        edge: usize,
        /// The most patches.
        most: usize,
    },
}

impl TargetSize {
    /// Returns the size that an image with size `from` has after resizing, rounded as by transformers' `image_transforms.py`.
    ///
    /// # Errors
    /// If the proportions leave no pixel, or too many.
    pub fn resized(self, from: Size) -> Result<Size> {
        let (height, width) = (from.height as f64, from.width as f64);
        let (short, long) = (height.min(width), height.max(width));
        let is_upright = from.width < from.height;
        let placed = |short: f64, long: f64| match is_upright {
            true => (long, short),
            false => (short, long),
        };
        let (height, width) = match self {
            Self::Fixed(size) => return Ok(size),
            Self::ShortestEdge(edge) => placed(edge as f64, edge as f64 * long / short),
            Self::Edges(edge, longest) => {
                let (mut edge, longest) = (edge as f64, longest as f64);
                let mut exact = edge;
                if long / short * edge > longest {
                    exact = longest * short / long;
                    edge = exact.round_ties_even();
                }
                match short == edge {
                    true => (height, width),
                    false => placed(edge, exact * long / short),
                }
            }
            Self::Within(size) => {
                let scale = (size.height as f64 / height).min(size.width as f64 / width);
                (height * scale, width * scale)
            }
            Self::Patches { edge, most } => in_patches([height, width], edge as f64, most as f64),
        };
        let is_allowed = |edge: f64| (1.0..=MAX_EDGE).contains(&edge);
        if !is_allowed(height) || !is_allowed(width) {
            let reason = format!(
                "{} x {} pixels would be resized to {:.0} x {:.0} by `size`, expected 1 to {MAX_EDGE} for each edge; crop the image",
                from.width,
                from.height,
                width.floor(),
                height.floor()
            );
            return Err(Error::input("image", reason));
        }
        Ok(Size {
            height: height as usize,
            width: width as usize,
        })
    }
}

/// Returns the size in whole patches by transformers' `get_image_size_for_max_num_patches`, a binary search for the scale.
fn in_patches(from: [f64; 2], edge: f64, most: f64) -> (f64, f64) {
    const EPS: f64 = 1e-5;
    let scaled = |scale: f64| from.map(|of| ((of * scale / edge).ceil() * edge).max(edge));
    let (mut low, mut high) = (EPS / 10.0, 100.0);
    while high - low >= EPS {
        let scale = (low + high) / 2.0;
        let [height, width] = scaled(scale);
        match (height / edge) * (width / edge) <= most {
            true => low = scale,
            false => high = scale,
        }
    }
    let [height, width] = scaled(low);
    (height, width)
}

/// The longest edge after resizing, which limits memory.
const MAX_EDGE: f64 = 65536.0;
