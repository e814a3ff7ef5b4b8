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
    let differences = Differences::new();
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
                *rgb = of_ink(differences.rgb(color), inks(black));
            }
        }
        _ => pixels
            .zip(colors)
            .for_each(|(rgb, color)| *rgb = differences.rgb(color)),
    }
    rgb
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
