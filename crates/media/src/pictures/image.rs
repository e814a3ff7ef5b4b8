//! An image in memory.

use std::fmt;

use candle_blocks_base::{Error, Result};

/// An image with three bytes for each pixel, red, green and blue, in rows from top to bottom.
#[derive(Clone, PartialEq, Eq)]
pub struct Image {
    width: usize,
    height: usize,
    bytes: Vec<u8>,
    /// The color that its file declares as transparent.
    transparent: Option<[u8; 3]>,
}

impl Image {
    /// Makes an image from its rows.
    ///
    /// # Errors
    /// If it has no pixel, or `bytes` has another length than `3 · width · height`.
    pub fn new(width: usize, height: usize, bytes: Vec<u8>) -> Result<Self> {
        let expected = width
            .checked_mul(height)
            .and_then(|n_pixels| n_pixels.checked_mul(3));
        if width == 0 || height == 0 || expected != Some(bytes.len()) {
            let reason = format!(
                "found {} bytes for {width} x {height} pixels, expected three for each of at least one pixel",
                bytes.len()
            );
            return Err(Error::input("image", reason));
        }
        Ok(Self::made(width, height, bytes))
    }

    /// Makes an image whose length has been checked.
    pub(super) fn made(width: usize, height: usize, bytes: Vec<u8>) -> Self {
        debug_assert_eq!(bytes.len(), 3 * width * height);
        Self {
            width,
            height,
            bytes,
            transparent: None,
        }
    }

    /// Returns the image with this color as the transparent one.
    pub(super) fn with_transparent(self, transparent: Option<[u8; 3]>) -> Self {
        Self {
            transparent,
            ..self
        }
    }

    /// Returns the image on a white background, if its file declares a color as transparent.
    pub(super) fn on_white(&self) -> Option<Self> {
        let color = self.transparent?;
        let mut image = self.clone();
        for pixel in image.bytes.chunks_exact_mut(3) {
            if *pixel == color {
                pixel.fill(255);
            }
        }
        Some(image)
    }

    /// Returns the width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Returns all bytes, `[height, width, 3]`.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns a row's bytes.
    pub(super) fn row(&self, y: usize) -> &[u8] {
        &self.bytes[3 * self.width * y..][..3 * self.width]
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} x {})", self.width, self.height)
    }
}
