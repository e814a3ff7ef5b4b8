//! Images to the values that a model reads.

use candle_blocks_base::{Error, Result};

use super::backend::Backend;
use super::filter::Filter;
use super::image::Image;
use super::size::{Size, TargetSize};
use super::{crop, floats, resize};

/// The order in which values are rescaled and resized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Resize bytes.
    #[default]
    ResizeFirst,
    /// Resize the rescaled values: DINOv3's processor.
    RescaleFirst,
}

/// The treatment of the color that a file without an alpha channel declares as transparent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransparentColor {
    /// It is a color like any other.
    #[default]
    Kept,
    /// It becomes white (`do_convert_rgb`).
    White,
}

/// The steps in transformers' image processors: resize, crop, rescale, normalize. A step that is `None` is left out.
#[derive(Clone, Debug, PartialEq)]
pub struct Preprocessing {
    /// The library whose results they have.
    pub backend: Backend,
    /// The order between rescaling and resizing.
    pub order: Order,
    /// The first step, for a transparent color.
    pub transparent: TransparentColor,
    /// The size after resizing, with the filter.
    pub resize: Option<(TargetSize, Filter)>,
    /// The window that is cut from the middle.
    pub crop: Option<Size>,
    /// The size to which black pixels below and at the right fill up an image. It has an effect on the values after normalization.
    pub pad: Option<Size>,
    /// The factor that rescales.
    pub rescale: Option<f64>,
    /// Each channel's mean and standard deviation.
    pub normalize: Option<([f64; 3], [f64; 3])>,
}

/// An image's values.
#[derive(Clone, Debug, PartialEq)]
pub struct Pixels {
    /// The size in pixels.
    pub size: Size,
    /// The values, `[3, height, width]`.
    pub values: Vec<f32>,
}

impl Preprocessing {
    /// Computes an image's values.
    ///
    /// # Errors
    /// If the image cannot be resized, or is larger than the size to which it is padded.
    pub fn pixels(&self, image: &Image) -> Result<Pixels> {
        let on_white = match self.transparent {
            TransparentColor::Kept => None,
            TransparentColor::White => image.on_white(),
        };
        let image = on_white.as_ref().unwrap_or(image);
        let pixels = match (self.order, self.resize) {
            (Order::RescaleFirst, Some((size, filter))) if self.rescale.is_some() => {
                self.rescaled_first(image, size, filter)?
            }
            _ => self.resized_first(image)?,
        };
        self.padded(pixels)
    }

    fn resized_first(&self, image: &Image) -> Result<Pixels> {
        let resized;
        let mut image = image;
        if let Some((size, filter)) = self.resize {
            let size = size.resized(Size::of(image))?;
            resized = resize::resize(image, size, filter, self.backend)?;
            image = &resized;
        }
        let cropped;
        if let Some(size) = self.crop {
            cropped = crop::center(image, size, self.backend);
            image = &cropped;
        }
        // A byte has one of 256 values.
        let tables: [[f32; 256]; 3] = std::array::from_fn(|channel| {
            std::array::from_fn(|byte| self.value(byte as u8, channel))
        });
        let n_pixels = image.width() * image.height();
        let mut values = vec![0.0; 3 * n_pixels];
        for (channel, (plane, table)) in values.chunks_exact_mut(n_pixels).zip(&tables).enumerate()
        {
            let bytes = image.bytes().iter().skip(channel).step_by(3);
            for (value, &byte) in plane.iter_mut().zip(bytes) {
                *value = table[usize::from(byte)];
            }
        }
        Ok(Pixels {
            size: Size::of(image),
            values,
        })
    }

    /// Returns a byte's value after rescaling and normalization.
    fn value(&self, byte: u8, channel: usize) -> f32 {
        let byte = f32::from(byte);
        match (self.backend, self.rescale, self.normalize) {
            (_, None, None) => byte,
            (Backend::Pil, Some(factor), normalize) => {
                let rescaled = (f64::from(byte) * factor) as f32;
                normalize.map_or(rescaled, |of| normalized(rescaled, channel, of))
            }
            (Backend::Torchvision, Some(factor), None) => byte * factor as f32,
            (_, None, Some(of)) => normalized(byte, channel, of),
            // Mean and deviation are divided by the factor instead of bytes multiplied.
            (Backend::Torchvision, Some(factor), Some((mean, deviation))) => {
                let inverse = (1.0 / factor) as f32;
                let (mean, deviation) = (mean[channel] as f32, deviation[channel] as f32);
                (byte - mean * inverse) / (deviation * inverse)
            }
        }
    }

    fn rescaled_first(&self, image: &Image, size: TargetSize, filter: Filter) -> Result<Pixels> {
        let from = Size::of(image);
        let size = size.resized(from)?;
        if matches!(
            filter,
            Filter::Nearest | Filter::Box | Filter::Hamming | Filter::Lanczos
        ) || self.crop.is_some()
        {
            let reason = "expected the filter Bilinear or Bicubic without a crop, for a processor that rescales first";
            return Err(Error::input("resample", reason));
        }
        let factor = self.rescale.unwrap_or(1.0) as f32;
        let mut values = Vec::with_capacity(image.bytes().len());
        for channel in 0..3 {
            let bytes = image.bytes().iter().skip(channel).step_by(3);
            values.extend(bytes.map(|&byte| f32::from(byte) * factor));
        }
        let mut values = floats::resize(&values, from, size, filter);
        if let Some(of) = self.normalize {
            let planes = values.chunks_exact_mut(size.height * size.width);
            for (channel, plane) in planes.enumerate() {
                let values = plane.iter_mut();
                values.for_each(|value| *value = normalized(*value, channel, of));
            }
        }
        Ok(Pixels { size, values })
    }

    fn padded(&self, pixels: Pixels) -> Result<Pixels> {
        let from = pixels.size;
        let Some(to) = self.pad.filter(|&to| to != from) else {
            return Ok(pixels);
        };
        if to.height < from.height || to.width < from.width {
            let reason = format!(
                "has {} x {} pixels after resizing, expected at most {} x {} (pad_size)",
                from.width, from.height, to.width, to.height
            );
            return Err(Error::input("image", reason));
        }
        let mut values = vec![0.0; 3 * to.height * to.width];
        let planes = values.chunks_exact_mut(to.height * to.width);
        for (to_plane, plane) in planes.zip(pixels.values.chunks_exact(from.height * from.width)) {
            let rows = to_plane.chunks_exact_mut(to.width);
            for (to_row, row) in rows.zip(plane.chunks_exact(from.width)) {
                to_row[..from.width].copy_from_slice(row);
            }
        }
        Ok(Pixels { size: to, values })
    }
}

/// Subtracts a mean and divides by a deviation in f32.
fn normalized(value: f32, channel: usize, (mean, deviation): ([f64; 3], [f64; 3])) -> f32 {
    (value - mean[channel] as f32) / deviation[channel] as f32
}
