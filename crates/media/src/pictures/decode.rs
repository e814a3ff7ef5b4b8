//! Files to pixels, as PIL reads them.

use std::io::Cursor;
use std::path::Path;

use ::image::{
    ColorType, DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits,
};
use candle_blocks_base::{Error, Result};

use super::image::Image;
use super::jpeg;
use super::transparent;

/// The most pixels that an image may have. PIL refuses larger ones as a "decompression bomb".
const MAX_PIXELS: u64 = 178_956_970;

/// The most pixels for each byte of a file: those of a PNG file with one bit for each, which deflate makes 1,032 times smaller.
const MAX_PIXELS_PER_BYTE: u64 = 8 * 1032;

/// The pixels from which a file is compared with its size. A small GIF file may have a larger canvas than its first image.
const COMPARED_FROM: u64 = 1 << 24;

/// The formats that are read. The first bytes tell them apart.
const FORMATS: [ImageFormat; 5] = [
    ImageFormat::Png,
    ImageFormat::Jpeg,
    ImageFormat::Gif,
    ImageFormat::Bmp,
    ImageFormat::WebP,
];

impl Image {
    /// Reads and decodes a file.
    ///
    /// # Errors
    /// If it cannot be read, or as in [`Self::decode`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|cause| Error::io(path, "read", cause))?;
        Self::decode(&path.display().to_string(), &bytes)
    }

    /// Decodes a PNG, JPEG, GIF, BMP or WebP file in memory to the pixels that transformers' `load_image` reads: PIL's
    /// `convert("RGB")`, turned upright as the file's EXIF orientation says. An alpha channel is dropped, and an animation
    /// gives its first image.
    ///
    /// # Errors
    /// If the bytes have another format, are damaged, cut off or too few for the pixels that they announce, or the image has more
    /// than 178,956,970 pixels, as in PIL. The message begins with `name`.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Self> {
        let fail = |reason: String| Error::input(name, reason);
        if bytes.is_empty() {
            return Err(fail("is empty, expected an image".into()));
        }
        let format = ::image::guess_format(bytes).ok();
        let Some(format) = format.filter(|format| FORMATS.contains(format)) else {
            let found = match format {
                Some(format) => format!("is an image in the format {format:?}"),
                None => "is no image".into(),
            };
            return Err(fail(format!(
                "{found}, expected a PNG, JPEG, GIF, BMP or WebP file; convert it, such as with ImageMagick's `convert IN OUT.png`"
            )));
        };
        let damaged = |error: ImageError| {
            let error = error.to_string();
            fail(format!(
                "is a damaged {format:?} file: {}",
                error.trim_end()
            ))
        };
        let of_jpeg = |fault| fail(format!("is a JPEG file that {fault}"));
        if format == ImageFormat::Jpeg {
            jpeg::check_end(bytes).map_err(of_jpeg)?;
        }
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        let mut limits = Limits::default();
        limits.max_alloc = Some(MAX_PIXELS * 8); // the largest image, with 16 bits in four channels
        reader.limits(limits);
        let mut decoder = reader.into_decoder().map_err(damaged)?;
        let (width, height) = decoder.dimensions();
        let n_pixels = u64::from(width) * u64::from(height);
        if n_pixels > MAX_PIXELS {
            return Err(fail(format!(
                "has {width} x {height} pixels, expected at most {MAX_PIXELS} (PIL's limit); scale it down"
            )));
        }
        if n_pixels == 0 {
            return Err(fail(format!(
                "has {width} x {height} pixels, expected at least one"
            )));
        }
        // Lossless WebP can describe any image of one color in the same few bytes.
        let n_bytes = bytes.len() as u64;
        let most = COMPARED_FROM.max(n_bytes * MAX_PIXELS_PER_BYTE);
        if format != ImageFormat::WebP && n_pixels > most {
            return Err(fail(format!(
                "says that it has {width} x {height} pixels, which its {n_bytes} bytes cannot hold: it is cut off or damaged"
            )));
        }
        let orientation = decoder.orientation().map_err(damaged)?;
        let color = match decoder.color_type() {
            // The decoder adds an alpha channel if a gray value is transparent: the file's own color type is 0.
            ColorType::La16 if bytes.get(25) == Some(&0) => Samples::GrayWithAlpha,
            color => Samples::Of(color),
        };
        let mut transparent = None;
        let rgb = if format == ImageFormat::Jpeg {
            let pixels = jpeg::decode(bytes, width as usize, height as usize);
            Some(pixels.map_err(of_jpeg)?)
        } else {
            let mut samples = vec![0; decoder.total_bytes() as usize];
            decoder.read_image(&mut samples).map_err(damaged)?;
            transparent = match format {
                ImageFormat::Png => transparent::of_png(bytes),
                ImageFormat::Gif => transparent::of_gif(&samples),
                _ => None,
            };
            to_rgb(color, samples)
        };
        let rgb = rgb.ok_or_else(|| {
            fail(format!(
                "has pixels of the type {color:?}, expected 8 or 16 bits for each channel"
            ))
        })?;
        let upright = ::image::RgbImage::from_raw(width, height, rgb).map(|rgb| {
            let mut image = DynamicImage::ImageRgb8(rgb);
            image.apply_orientation(orientation);
            image.into_rgb8()
        });
        let upright = upright.ok_or_else(|| fail("has fewer pixels than it says".into()))?;
        let (width, height) = upright.dimensions();
        let image = Image::made(width as usize, height as usize, upright.into_raw());
        Ok(image.with_transparent(transparent))
    }
}

/// The type that samples have.
#[derive(Clone, Copy, Debug)]
enum Samples {
    Of(ColorType),
    /// 16-bit gray values, with an alpha channel that the file does not have.
    GrayWithAlpha,
}

/// Converts samples to three bytes for each pixel, as PIL does: it drops the alpha channel, takes the upper byte if a color has
/// 16 bits, and limits a 16-bit gray value to 255.
fn to_rgb(color: Samples, samples: Vec<u8>) -> Option<Vec<u8>> {
    let upper = |pair: &[u8]| (u16::from_ne_bytes([pair[0], pair[1]]) >> 8) as u8;
    let limited = |pair: &[u8]| u16::from_ne_bytes([pair[0], pair[1]]).min(255) as u8;
    let color = match color {
        Samples::Of(color) => color,
        Samples::GrayWithAlpha => {
            let pixels = samples.chunks_exact(4);
            return Some(pixels.flat_map(|la| [limited(la); 3]).collect());
        }
    };
    Some(match color {
        ColorType::Rgb8 => samples,
        ColorType::L8 => samples.iter().flat_map(|&gray| [gray; 3]).collect(),
        ColorType::La8 => samples.chunks_exact(2).flat_map(|la| [la[0]; 3]).collect(),
        ColorType::Rgba8 => {
            let pixels = samples.chunks_exact(4);
            pixels
                .flat_map(|rgba| [rgba[0], rgba[1], rgba[2]])
                .collect()
        }
        ColorType::L16 => {
            let pixels = samples.chunks_exact(2);
            pixels.flat_map(|gray| [limited(gray); 3]).collect()
        }
        ColorType::La16 => {
            let pixels = samples.chunks_exact(4);
            pixels.flat_map(|la| [upper(la); 3]).collect()
        }
        ColorType::Rgb16 => samples.chunks_exact(2).map(upper).collect(),
        ColorType::Rgba16 => {
            let pixels = samples.chunks_exact(8);
            pixels
                .flat_map(|rgba| [upper(rgba), upper(&rgba[2..]), upper(&rgba[4..])])
                .collect()
        }
        _ => return None,
    })
}
