//! Samples to red, green and blue: libjpeg's `jdcolor.c`, and PIL's conversion from four components.

/// Segments that say how colors are coded.
#[derive(Default)]
pub struct Marks {
    is_jfif: bool,
    /// The transform that Adobe's segment names.
    adobe: Option<u8>,
}

/// How colors are coded.
#[derive(Clone, Copy)]
pub enum Coding {
    Gray,
    Rgb,
    YCbCr,
    Cmyk,
    Ycck,
}

impl Marks {
    /// Reads an application's segment.
    pub fn read(&mut self, marker: u8, body: &[u8]) {
        match marker {
            0xe0 => self.is_jfif |= body.starts_with(b"JFIF\0"),
            _ if body.starts_with(b"Adobe") => self.adobe = body.get(11).copied().or(self.adobe),
            _ => {}
        }
    }

    /// Returns how components with these names are coded, as libjpeg guesses it.
    pub fn coding(&self, ids: &[u8]) -> Coding {
        match (ids, self.adobe) {
            ([_], _) => Coding::Gray,
            ([_, _, _], _) if self.is_jfif => Coding::YCbCr,
            ([_, _, _], Some(0)) => Coding::Rgb,
            ([_, _, _], Some(_)) => Coding::YCbCr,
            (b"RGB", None) => Coding::Rgb,
            ([_, _, _], None) => Coding::YCbCr,
            (_, Some(2)) => Coding::Ycck,
            _ => Coding::Cmyk,
        }
    }
}

/// Converts planes to three bytes for each pixel.
pub fn to_rgb(planes: &[Vec<u8>], coding: Coding) -> Vec<u8> {
    let mut rgb = vec![0; 3 * planes[0].len()];
    let pixels = rgb.as_chunks_mut::<3>().0.iter_mut();
    if let [gray] = planes {
        pixels.zip(gray).for_each(|(rgb, &gray)| *rgb = [gray; 3]);
        return rgb;
    }
    let colors = planes[0].iter().zip(&planes[1]).zip(&planes[2]);
    let colors = colors.map(|((&a, &b), &c)| [a, b, c]);
    let inks = |black: &u8| 255 - black;
    match (coding, planes.get(3)) {
        (Coding::Rgb, _) => pixels.zip(colors).for_each(|(rgb, color)| *rgb = color),
        (Coding::Cmyk, Some(black)) => {
            for ((rgb, color), black) in pixels.zip(colors).zip(black) {
                *rgb = of_ink(color.map(|ink| 255 - ink), inks(black));
            }
        }
        // libjpeg inverts the colors once more, and PIL inverts all.
        (Coding::Ycck, Some(black)) => {
            for ((rgb, color), black) in pixels.zip(colors).zip(black) {
                *rgb = of_ink(of_luma(color), inks(black));
            }
        }
        _ => pixels
            .zip(colors)
            .for_each(|(rgb, color)| *rgb = of_luma(color)),
    }
    rgb
}

/// Converts luma and two color differences, with 16 bits after the point.
fn of_luma([y, blue, red]: [u8; 3]) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    let (y, blue, red) = (i32::from(y), i32::from(blue) - 128, i32::from(red) - 128);
    let limited = |value: i32| value.clamp(0, 255) as u8;
    [
        limited(y + ((91881 * red + HALF) >> 16)),
        limited(y + ((-22554 * blue - 46802 * red + HALF) >> 16)),
        limited(y + ((116130 * blue + HALF) >> 16)),
    ]
}

/// Converts three inks and black, as PIL does.
fn of_ink(inks: [u8; 3], black: u8) -> [u8; 3] {
    let light = 255 - i32::from(black);
    inks.map(|ink| {
        let product = i32::from(ink) * light + 128;
        (light - (((product >> 8) + product) >> 8)).clamp(0, 255) as u8
    })
}
