//! The loss curve as an image.

use std::{fs::File, io::BufWriter, path::Path};

use anyhow::{Context, Result};

use crate::training::Losses;

const WIDTH: usize = 800;
const HEIGHT: usize = 480;
/// The left, top, right and bottom edges of the frame.
const FRAME: [usize; 4] = [70, 20, WIDTH - 20, HEIGHT - 40];
const BLACK: [u8; 3] = [40, 40, 40];
const GREY: [u8; 3] = [225, 225, 225];
const TRAINED: [u8; 3] = [130, 170, 220];
const HELD_OUT: [u8; 3] = [200, 60, 40];
/// Digits and the point, three columns of five rows, in the bits of a number from the top left.
const GLYPHS: [(char, u16); 11] = [
    ('0', 0b111_101_101_101_111),
    ('1', 0b010_110_010_010_111),
    ('2', 0b111_001_111_100_111),
    ('3', 0b111_001_111_001_111),
    ('4', 0b101_101_111_001_001),
    ('5', 0b111_100_111_001_111),
    ('6', 0b111_100_111_101_111),
    ('7', 0b111_001_010_010_010),
    ('8', 0b111_101_111_101_111),
    ('9', 0b111_101_111_001_111),
    ('.', 0b000_000_000_000_010),
];
/// Pixels per dot of a glyph.
const DOT: usize = 2;

/// Writes a PNG of nats per byte over steps: the training loss in blue, that on the held-out part in red.
pub fn draw(path: &Path, losses: &[Losses]) -> Result<()> {
    let mut picture = Picture(vec![255; WIDTH * HEIGHT * 3]);
    let values = losses.iter().flat_map(|l| [l.trained, l.held_out]);
    let (low, high) = values.fold((f64::MAX, f64::MIN), |(low, high), v| {
        (low.min(v), high.max(v))
    });
    let (low, high) = ((low * 2.0).floor() / 2.0, (high * 2.0).ceil() / 2.0);
    let last = losses.last().map_or(1, |l| l.step.max(1)) as f64;
    let [left, top, right, bottom] = FRAME.map(|edge| edge as f64);
    let across = |step: f64| left + (right - left) * step / last;
    let up = |loss: f64| bottom - (bottom - top) * (loss - low) / (high - low).max(0.5);

    for half in 0..=((high - low) * 2.0) as usize {
        let loss = low + half as f64 / 2.0;
        picture.line((left, up(loss)), (right, up(loss)), GREY);
        picture.write(&format!("{loss:.1}"), FRAME[0] - 8, up(loss) as usize - 5);
    }
    for quarter in 0..=4 {
        let step = (last * quarter as f64 / 4.0).round();
        picture.line((across(step), top), (across(step), bottom), GREY);
        picture.write(&step.to_string(), across(step) as usize + 12, FRAME[3] + 12);
    }
    picture.line((left, top), (left, bottom), BLACK);
    picture.line((left, bottom), (right, bottom), BLACK);
    for pair in losses.windows(2) {
        let at = |l: &Losses, value: f64| (across(l.step as f64), up(value));
        let [from, to] = pair else { continue };
        picture.line(at(from, from.trained), at(to, to.trained), TRAINED);
        picture.line(at(from, from.held_out), at(to, to.held_out), HELD_OUT);
    }
    picture.save(path)
}

/// Red, green and blue of every pixel, row by row.
struct Picture(Vec<u8>);

impl Picture {
    fn dot(&mut self, x: usize, y: usize, colour: [u8; 3]) {
        if x < WIDTH && y < HEIGHT {
            self.0[(y * WIDTH + x) * 3..][..3].copy_from_slice(&colour);
        }
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: [u8; 3]) {
        let n = (to.0 - from.0)
            .abs()
            .max((to.1 - from.1).abs())
            .ceil()
            .max(1.0);
        for i in 0..=n as usize {
            let along = i as f64 / n;
            let x = (from.0 + along * (to.0 - from.0)).round() as usize;
            let y = (from.1 + along * (to.1 - from.1)).round() as usize;
            self.dot(x, y, colour);
            if colour != GREY {
                self.dot(x, y + 1, colour); // two pixels thick
            }
        }
    }

    /// A number whose last digit ends at `right`.
    fn write(&mut self, number: &str, right: usize, top: usize) {
        let left = right.saturating_sub(number.len() * 4 * DOT);
        for (i, letter) in number.chars().enumerate() {
            let known = GLYPHS.iter().find(|(known, _)| *known == letter);
            let bits = known.map_or(0, |&(_, bits)| bits);
            for cell in (0..15).filter(|cell| bits >> (14 - cell) & 1 == 1) {
                for pixel in 0..DOT * DOT {
                    let x = left + (i * 4 + cell % 3) * DOT + pixel % DOT;
                    self.dot(x, top + cell / 3 * DOT + pixel / DOT, BLACK);
                }
            }
        }
    }

    fn save(&self, path: &Path) -> Result<()> {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        let mut encoder = png::Encoder::new(BufWriter::new(file), WIDTH as u32, HEIGHT as u32);
        encoder.set_color(png::ColorType::Rgb);
        Ok(encoder.write_header()?.write_image_data(&self.0)?)
    }
}
