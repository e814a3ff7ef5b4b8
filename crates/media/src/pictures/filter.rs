//! PIL's filters, which torchvision has too.

use std::f64::consts::PI;

/// A filter that says how much each pixel around a place counts there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Filter {
    /// The nearest pixel alone.
    Nearest,
    /// A truncated sinc over six pixels.
    Lanczos,
    /// A triangle over two pixels.
    Bilinear,
    /// Keys's cubic over four pixels, with -0.5.
    Bicubic,
    /// The mean over one pixel. PIL alone has it.
    Box,
    /// A Hamming window over two pixels. PIL alone has it.
    Hamming,
}

impl Filter {
    /// Returns the filter with this value in PIL's `Image.Resampling`, as `resample` in a file has it.
    pub fn numbered(number: u64) -> Option<Self> {
        const ALL: [Filter; 6] = [
            Filter::Nearest,
            Filter::Lanczos,
            Filter::Bilinear,
            Filter::Bicubic,
            Filter::Box,
            Filter::Hamming,
        ];
        ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns the distance beyond which a pixel does not count, without enlargement.
    pub(super) fn support(self) -> f64 {
        match self {
            Self::Nearest | Self::Box => 0.5,
            Self::Bilinear | Self::Hamming => 1.0,
            Self::Bicubic => 2.0,
            Self::Lanczos => 3.0,
        }
    }

    /// Returns the weight of a pixel at this distance, before weights are scaled to a sum of 1:
    /// <https://github.com/python-pillow/Pillow/blob/12.0.0/src/libImaging/Resample.c>.
    pub(super) fn weight(self, x: f64) -> f64 {
        let a = x.abs();
        match self {
            Self::Nearest | Self::Box => f64::from(x > -0.5 && x <= 0.5),
            Self::Bilinear if a < 1.0 => 1.0 - a,
            Self::Bicubic if a < 1.0 => (1.5 * a - 2.5) * a * a + 1.0,
            Self::Bicubic if a < 2.0 => (((a - 5.0) * a + 8.0) * a - 4.0) * -0.5,
            Self::Hamming if a == 0.0 => 1.0,
            Self::Hamming if a < 1.0 => {
                let x = a * PI;
                // PIL writes these two constants in f32.
                x.sin() / x * (f64::from(0.54f32) + f64::from(0.46f32) * x.cos())
            }
            Self::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            _ => 0.0,
        }
    }
}

/// Returns `sin(πx) / πx`.
fn sinc(x: f64) -> f64 {
    match x {
        0.0 => 1.0,
        _ => (x * PI).sin() / (x * PI),
    }
}
