//! Resizing without a filter.

use super::backend::Backend;
use super::image::Image;
use super::size::Size;

/// Copies the nearest pixel to each place.
pub(super) fn resize(image: &Image, to: Size, backend: Backend) -> Image {
    let columns = places(image.width(), to.width, backend);
    let mut bytes = Vec::with_capacity(3 * to.width * to.height);
    for y in places(image.height(), to.height, backend) {
        let row = image.row(y);
        for &x in &columns {
            bytes.extend_from_slice(&row[3 * x..][..3]);
        }
    }
    Image::made(to.width, to.height, bytes)
}

/// Returns the pixel to copy to each place: the one at its middle. torchvision computes in f32 (`nearest-exact`, which transformers
/// selects), PIL in f64.
fn places(from: usize, to: usize, backend: Backend) -> Vec<usize> {
    let limited = |place: usize| place.min(from - 1);
    match backend {
        Backend::Pil => {
            let step = from as f64 / to as f64;
            // PIL adds up the steps, with the rounding of each.
            let middles = std::iter::successors(Some(step * 0.5), |at| Some(at + step));
            middles.take(to).map(|at| limited(at as usize)).collect()
        }
        Backend::Torchvision => {
            let step = from as f32 / to as f32;
            let place = |i: usize| limited(((i as f32 + 0.5) * step) as usize);
            (0..to).map(place).collect()
        }
    }
}
