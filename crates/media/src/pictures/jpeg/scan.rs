//! Scans: some components' coefficients, or some bits.

use super::frame::Frame;
use super::huffman::{Bits, Codes};
use super::tables::{Tables, ZIGZAG};

/// The bits that a scan has.
#[derive(Clone, Copy)]
struct Band {
    start: usize,
    end: usize,
    /// The scan refines coefficients by one bit.
    refines: bool,
    /// The lowest bit's place.
    low: u32,
}

/// The decoder's state.
struct State<'b> {
    bits: Bits<'b>,
    /// Each component's last lowest frequency.
    last: [i32; 4],
    /// How many blocks have no more coefficients in this band.
    n_empty: u32,
}

/// Decodes a scan from the bytes after its segment, and returns those after its data.
///
/// # Errors
/// If it is malformed or cut off.
pub fn decode<'b>(
    frame: &mut Frame,
    tables: &Tables,
    body: &[u8],
    bytes: &'b [u8],
) -> Result<&'b [u8], String> {
    let short = || "has a scan that is too short".to_string();
    let (&n, rest) = body.split_first().ok_or_else(short)?;
    let n = usize::from(n);
    let named = rest.get(..2 * n).ok_or_else(short)?;
    let &[start, end, bits] = rest.get(2 * n..2 * n + 3).ok_or_else(short)? else {
        return Err(short());
    };
    let band = match frame.is_progressive {
        true => Band {
            start: usize::from(start),
            end: usize::from(end),
            refines: bits >> 4 != 0,
            low: u32::from(bits & 15),
        },
        false => Band {
            start: 0,
            end: 63,
            refines: false,
            low: 0,
        },
    };
    let is_band = band.start <= band.end && band.end < 64 && band.low < 14;
    let is_lowest_alone = band.start > 0 || !frame.is_progressive || band.end == 0;
    if !is_band || !is_lowest_alone || n == 0 || n > 4 || (band.start > 0 && n > 1) {
        return Err("has a scan with an impossible band".into());
    }
    let mut parts = Vec::new();
    for pair in named.chunks_exact(2) {
        let index = frame.components.iter().position(|one| one.id == pair[0]);
        let index = index.ok_or("has a scan of an unknown component")?;
        let needs = |class: usize| match (class, frame.is_progressive) {
            (_, false) => true,
            (0, true) => band.start == 0 && !band.refines,
            (_, true) => band.start > 0,
        };
        let low = match needs(0) {
            true => Some(tables.codes(0, pair[1] >> 4)?),
            false => None,
        };
        let high = match needs(1) {
            true => Some(tables.codes(1, pair[1] & 15)?),
            false => None,
        };
        parts.push((index, low, high));
    }
    let mut state = State {
        bits: Bits::new(bytes),
        last: [0; 4],
        n_empty: 0,
    };
    // One component alone is in rows of its own blocks, several are in groups.
    let is_alone = n == 1;
    let groups = match is_alone {
        true => {
            let one = &frame.components[parts[0].0];
            [one.width.div_ceil(8), one.height.div_ceil(8)]
        }
        false => [
            frame.width.div_ceil(8 * frame.most[0]),
            frame.height.div_ceil(8 * frame.most[1]),
        ],
    };
    for group in 0..groups[0] * groups[1] {
        if tables.interval > 0 && group > 0 && group % tables.interval == 0 {
            state.bits.restart()?;
            (state.last, state.n_empty) = ([0; 4], 0);
        }
        let (x, y) = (group % groups[0], group / groups[0]);
        for &(index, low, high) in &parts {
            let component = &mut frame.components[index];
            let [across, down] = match is_alone {
                true => [1, 1],
                false => component.sampling,
            };
            for block in 0..across * down {
                let (bx, by) = (x * across + block % across, y * down + block / across);
                let block = &mut component.coefficients[by * component.blocks[0] + bx];
                state.block(block, index, (low, high), band)?;
            }
        }
    }
    state.bits.end()
}

impl State<'_> {
    fn block(
        &mut self,
        block: &mut [i16; 64],
        index: usize,
        (low, high): (Option<&Codes>, Option<&Codes>),
        band: Band,
    ) -> Result<(), String> {
        if let Some(codes) = low {
            let n = self.bits.code(codes)?;
            if n > 15 {
                return Err("has a coefficient with too many bits".into());
            }
            let difference = self.bits.signed(u32::from(n));
            self.last[index] = self.last[index].wrapping_add(difference);
            block[0] = (self.last[index] << band.low) as i16;
        } else if band.start == 0 && self.bits.take(1) == 1 {
            block[0] |= 1 << band.low;
        }
        match (high, band.refines) {
            (None, _) => Ok(()),
            (Some(codes), false) => self.first(block, codes, band),
            (Some(codes), true) => self.refined(block, codes, band),
        }
    }

    /// Reads a band's coefficients, or their upper bits.
    fn first(&mut self, block: &mut [i16; 64], codes: &Codes, band: Band) -> Result<(), String> {
        if self.n_empty > 0 {
            self.n_empty -= 1;
            return Ok(());
        }
        let mut k = band.start.max(1);
        while k <= band.end {
            let code = self.bits.code(codes)?;
            let (run, n) = (usize::from(code >> 4), u32::from(code & 15));
            if n == 0 {
                if run == 15 {
                    k += 16;
                    continue;
                }
                // Without bands, the block alone ends here.
                self.n_empty = (1 << run) - 1 + self.bits.take(run as u32) as u32;
                break;
            }
            k += run;
            if k > band.end {
                return Err("has more coefficients than a block".into());
            }
            let value = self.bits.signed(n);
            block[usize::from(ZIGZAG[k])] = (value << band.low) as i16;
            k += 1;
        }
        Ok(())
    }

    /// Reads one more bit for a band's coefficients.
    fn refined(&mut self, block: &mut [i16; 64], codes: &Codes, band: Band) -> Result<(), String> {
        let bit = 1i16 << band.low;
        let mut k = band.start;
        if self.n_empty == 0 {
            while k <= band.end {
                let code = self.bits.code(codes)?;
                let (mut run, n) = (code >> 4, code & 15);
                let mut new = 0;
                match n {
                    0 if run < 15 => {
                        let more = self.bits.take(u32::from(run)) as u32;
                        self.n_empty = (1 << run) + more;
                        break;
                    }
                    0 => {}
                    1 => new = [-bit, bit][self.bits.take(1) as usize],
                    _ => return Err("has a refinement of more than one bit".into()),
                }
                while k <= band.end {
                    let value = &mut block[usize::from(ZIGZAG[k])];
                    if *value != 0 {
                        refine(value, bit, &mut self.bits);
                    } else if run == 0 {
                        *value = new;
                        k += 1;
                        break;
                    } else {
                        run -= 1;
                    }
                    k += 1;
                }
            }
        }
        if self.n_empty > 0 {
            for &place in &ZIGZAG[k..=band.end] {
                let value = &mut block[usize::from(place)];
                if *value != 0 {
                    refine(value, bit, &mut self.bits);
                }
            }
            self.n_empty -= 1;
        }
        Ok(())
    }
}

/// Adds a bit to a coefficient that has upper bits.
fn refine(value: &mut i16, bit: i16, bits: &mut Bits) {
    if bits.take(1) == 1 && *value & bit == 0 {
        *value = value.wrapping_add(if *value > 0 { bit } else { -bit });
    }
}
