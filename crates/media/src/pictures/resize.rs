//! Resizing in bytes, in two passes with bytes between them. Each result has its library's bits.

use std::ops::Range;

use candle_blocks_base::{Error, Result};

use super::backend::Backend;
use super::filter::Filter;
use super::image::Image;
use super::nearest;
use super::size::Size;
use super::taps::Taps;

/// How many rows the horizontal pass takes at once: a vector for each column and channel.
const ROWS: usize = 16;

/// Resizes an image to the bytes that PIL's `Image.resize` gives, or torchvision's `resize` with `antialias=True` for a uint8
/// tensor on a CPU.
///
/// # Errors
/// If `to` has no pixel, or the backend does not have the filter.
pub fn resize(image: &Image, to: Size, filter: Filter, backend: Backend) -> Result<Image> {
    if to.width == 0 || to.height == 0 {
        let reason = format!(
            "{} x {} pixels cannot be resized to {} x {}; give a size of at least one pixel",
            image.width(),
            image.height(),
            to.width,
            to.height
        );
        return Err(Error::input("image", reason));
    }
    if to == Size::of(image) {
        return Ok(image.clone());
    }
    match (filter, backend) {
        (Filter::Nearest, _) => return Ok(nearest::resize(image, to, backend)),
        (Filter::Box | Filter::Hamming, Backend::Torchvision) => {
            let reason = format!("torchvision has no {filter:?} filter; select the backend pil");
            return Err(Error::input("resample", reason));
        }
        _ => {}
    }
    let taps = |from, to| Taps::new(filter, (from, to), backend).quantized(backend);
    let columns = (to.width != image.width()).then(|| taps(image.width(), to.width));
    let rows = (to.height != image.height()).then(|| taps(image.height(), to.height));
    Ok(match (columns, rows) {
        (Some(columns), Some(rows)) if is_vertical_first(Size::of(image), to, backend) => {
            let lower = vertically(image, 0, &rows);
            horizontally(&lower, 0..to.height, &columns)
        }
        (Some(columns), Some(rows)) => {
            let used = rows.0.range(); // the second pass reads no other rows
            let narrower = horizontally(image, used.clone(), &columns);
            vertically(&narrower, used.start, &rows)
        }
        (Some(columns), None) => horizontally(image, 0..image.height(), &columns),
        (None, Some(rows)) => vertically(image, 0, &rows),
        (None, None) => image.clone(),
    })
}

/// Returns true if the vertical pass comes first. Pillow 13 decides so: it does if it leaves out more than twice as many rows as
/// the horizontal pass leaves out columns. Measured; the test with 200 sizes holds it.
fn is_vertical_first(from: Size, to: Size, backend: Backend) -> bool {
    let less = |from: usize, to: usize| from as i64 - to as i64;
    let (rows, columns) = (less(from.height, to.height), less(from.width, to.width));
    backend == Backend::Pil && rows > 0 && rows > 2 * columns
}

/// Resizes these rows.
fn horizontally(image: &Image, rows: Range<usize>, (taps, bits): &(Taps<i32>, u32)) -> Image {
    let (width, height) = (taps.len(), rows.len());
    let mut bytes = vec![0; 3 * width * height];
    let mut columns = vec![[0u8; ROWS]; 3 * image.width()];
    for (block, to) in bytes.chunks_mut(ROWS * 3 * width).enumerate() {
        let n_rows = to.len() / (3 * width);
        for row in 0..n_rows {
            let bytes = image.row(rows.start + block * ROWS + row);
            for (column, &byte) in columns.iter_mut().zip(bytes) {
                column[row] = byte;
            }
        }
        for (x, (start, weights)) in taps.iter().enumerate() {
            let mut sums = [[1i32 << (bits - 1); ROWS]; 3];
            let pixels = columns[3 * start..].chunks_exact(3);
            for (&weight, pixel) in weights.iter().zip(pixels) {
                for (sums, column) in sums.iter_mut().zip(pixel) {
                    for (sum, &byte) in sums.iter_mut().zip(column) {
                        *sum += weight * i32::from(byte);
                    }
                }
            }
            for row in 0..n_rows {
                for channel in 0..3 {
                    to[3 * (row * width + x) + channel] = byte(sums[channel][row], *bits);
                }
            }
        }
    }
    Image::made(width, height, bytes)
}

/// Resizes the columns, given that the first row is row `offset` in the whole image.
fn vertically(image: &Image, offset: usize, (taps, bits): &(Taps<i32>, u32)) -> Image {
    let n_bytes = 3 * image.width();
    let mut bytes = Vec::with_capacity(n_bytes * taps.len());
    let mut sums = vec![0i32; n_bytes];
    for (start, weights) in taps.iter() {
        sums.fill(1 << (bits - 1));
        let rows = image.bytes()[n_bytes * (start - offset)..].chunks_exact(n_bytes);
        for (&weight, row) in weights.iter().zip(rows) {
            for (sum, &byte) in sums.iter_mut().zip(row) {
                *sum += weight * i32::from(byte);
            }
        }
        bytes.extend(sums.iter().map(|&sum| byte(sum, *bits)));
    }
    Image::made(image.width(), taps.len(), bytes)
}

/// Returns a sum's integer part, limited to a byte.
fn byte(sum: i32, bits: u32) -> u8 {
    (sum >> bits).clamp(0, 255) as u8
}
