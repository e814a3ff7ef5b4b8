//! The middle window.

use super::backend::Backend;
use super::image::Image;
use super::size::Size;

/// Cuts a window with this size from the image's middle. Pixels outside the image are black.
pub(super) fn center(image: &Image, to: Size, backend: Backend) -> Image {
    let (top, above) = offsets(image.height(), to.height, backend);
    let (left, before) = offsets(image.width(), to.width, backend);
    let n_rows = to.height.min(image.height());
    let n_bytes = 3 * to.width.min(image.width());
    let mut bytes = vec![0; 3 * to.width * to.height];
    let rows = bytes
        .chunks_exact_mut(3 * to.width)
        .skip(above)
        .take(n_rows);
    for (y, row) in rows.enumerate() {
        row[3 * before..][..n_bytes].copy_from_slice(&image.row(top + y)[3 * left..][..n_bytes]);
    }
    Image::made(to.width, to.height, bytes)
}

/// Returns how many pixels to leave out at the beginning, and how many black ones to put there.
fn offsets(from: usize, to: usize, backend: Backend) -> (usize, usize) {
    match from.checked_sub(to) {
        Some(more) => (more / 2, 0),
        None => match backend {
            Backend::Torchvision => (0, (to - from) / 2),
            Backend::Pil => (0, (to - from).div_ceil(2)),
        },
    }
}
