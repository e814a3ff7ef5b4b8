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

/// Converts rows of components to red, green and blue.
pub struct Converter {
    coding: Coding,
    differences: Differences,
}

impl Converter {
    pub fn new(coding: Coding) -> Self {
        Self {
            coding,
            differences: Differences::new(),
        }
    }

    /// Writes three bytes for each pixel in a row.
    pub fn convert(&self, components: &[Vec<u8>], rgb: &mut [u8]) {
        let pixels = rgb.as_chunks_mut::<3>().0.iter_mut();
        let [a, b, c, rest @ ..] = components else {
            let gray = components.iter().flatten();
            return pixels.zip(gray).for_each(|(rgb, &gray)| *rgb = [gray; 3]);
        };
        let colors = a.iter().zip(b).zip(c).map(|((&a, &b), &c)| [a, b, c]);
        match (self.coding, rest) {
            (Coding::Rgb, _) => pixels.zip(colors).for_each(|(rgb, color)| *rgb = color),
            (Coding::Cmyk, [black]) => {
                for ((rgb, color), black) in pixels.zip(colors).zip(black) {
                    *rgb = of_ink(color.map(|ink| 255 - ink), 255 - black);
                }
            }
            // libjpeg inverts the colors once more, and PIL inverts all.
            (Coding::Ycck, [black]) => {
                for ((rgb, color), black) in pixels.zip(colors).zip(black) {
                    *rgb = of_ink(self.differences.rgb(color), 255 - black);
                }
            }
            _ => pixels
                .zip(colors)
                .for_each(|(rgb, color)| *rgb = self.differences.rgb(color)),
        }
    }
}

/// The parts of a color that a difference adds, for each byte: 16 bits are after the point where two are added.
struct Differences {
    red: [i32; 256],
    green: [[i32; 256]; 2],
    blue: [i32; 256],
}

impl Differences {
    fn new() -> Self {
        const HALF: i32 = 1 << 15;
        let scaled = |factor: i32, bias: i32| {
            std::array::from_fn(|byte| factor * (byte as i32 - 128) + bias)
        };
        let whole = |factor| scaled(factor, HALF).map(|value: i32| value >> 16);
        Self {
            red: whole(91881),
            green: [scaled(-22554, HALF), scaled(-46802, 0)],
            blue: whole(116130),
        }
    }

    /// Converts luma and two color differences.
    fn rgb(&self, [y, blue, red]: [u8; 3]) -> [u8; 3] {
        let (y, blue, red) = (i32::from(y), usize::from(blue), usize::from(red));
        let green = (self.green[0][blue] + self.green[1][red]) >> 16;
        [y + self.red[red], y + green, y + self.blue[blue]].map(|value| value.clamp(0, 255) as u8)
    }
}

/// Converts three inks and black, as PIL does.
fn of_ink(inks: [u8; 3], black: u8) -> [u8; 3] {
    let light = 255 - i32::from(black);
    inks.map(|ink| {
        let product = i32::from(ink) * light + 128;
        (light - (((product >> 8) + product) >> 8)).clamp(0, 255) as u8
    })
}
