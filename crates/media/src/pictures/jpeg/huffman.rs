//! Huffman tables, and a scan's bits.

use super::segments::cut_off;

/// How many bits one look into a table decodes.
const LOOK: u32 = 9;

/// A Huffman table.
#[derive(Clone)]
pub struct Codes {
    /// For each beginning with `LOOK` bits, a value and its length in bits; length 0 if it is longer.
    short: Vec<(u8, u8)>,
    /// For each length, the bits after those with that length, aligned to 16.
    ends: [u32; 17],
    /// For each length, its first value's index minus its first bits.
    offsets: [i32; 17],
    values: Vec<u8>,
}

impl Codes {
    /// Makes a table from how many values have each length, 1 to 16, and the values in their order.
    ///
    /// # Errors
    /// If there are more values than fit.
    pub fn new(counts: &[u8; 16], values: &[u8]) -> Result<Self, String> {
        let mut codes = Self {
            short: vec![(0, 0); 1 << LOOK],
            ends: [0; 17],
            offsets: [0; 17],
            values: values.to_vec(),
        };
        let (mut code, mut index) = (0u32, 0usize);
        for length in 1..=16u32 {
            codes.offsets[length as usize] = index as i32 - code as i32;
            for _ in 0..counts[length as usize - 1] {
                if code >= 1 << length {
                    return Err("has an impossible Huffman table".into());
                }
                if length <= LOOK {
                    let first = (code << (LOOK - length)) as usize;
                    let last = first + (1 << (LOOK - length));
                    codes.short[first..last].fill((values[index], length as u8));
                }
                code += 1;
                index += 1;
            }
            codes.ends[length as usize] = code << (16 - length);
            code <<= 1;
        }
        Ok(codes)
    }
}

/// Reads a scan's bits, up to the next marker.
pub struct Bits<'b> {
    bytes: &'b [u8],
    at: usize,
    /// The next bits, at the upper end.
    buffer: u64,
    n_bits: u32,
    /// How many bits were made up after the end.
    n_missing: u32,
}

impl<'b> Bits<'b> {
    pub fn new(bytes: &'b [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            buffer: 0,
            n_bits: 0,
            n_missing: 0,
        }
    }

    /// Fills the buffer to at least 32 bits; with zeros after the last one.
    fn fill(&mut self) {
        let next = self
            .bytes
            .get(self.at..)
            .and_then(|rest| rest.first_chunk::<4>());
        if let Some(&next) = next
            && self.n_bits <= 32
            && !next.contains(&0xff)
        {
            self.buffer |= u64::from(u32::from_be_bytes(next)) << (32 - self.n_bits);
            self.at += 4;
            self.n_bits += 32;
            return;
        }
        while self.n_bits <= 56 {
            let byte = match (self.bytes.get(self.at), self.bytes.get(self.at + 1)) {
                (Some(0xff), Some(0)) => {
                    self.at += 2;
                    0xff
                }
                (Some(0xff), _) | (None, _) => {
                    self.n_missing += 8;
                    0
                }
                (Some(&byte), _) => {
                    self.at += 1;
                    byte
                }
            };
            self.buffer |= u64::from(byte) << (56 - self.n_bits);
            self.n_bits += 8;
        }
    }

    fn skip(&mut self, n: u32) {
        self.buffer <<= n;
        self.n_bits -= n;
    }

    /// Reads `n` bits, up to 16.
    pub fn take(&mut self, n: u32) -> i32 {
        if n == 0 {
            return 0;
        }
        if self.n_bits < n {
            self.fill();
        }
        let value = (self.buffer >> (64 - n)) as i32;
        self.skip(n);
        value
    }

    /// Reads a coefficient with `n` bits: the upper half are positive values.
    pub fn signed(&mut self, n: u32) -> i32 {
        match n {
            0 => 0,
            _ => {
                let value = self.take(n);
                match value >> (n - 1) {
                    0 => value - (1 << n) + 1,
                    _ => value,
                }
            }
        }
    }

    /// Reads a Huffman code, and returns its value.
    ///
    /// # Errors
    /// If the table has no such bits.
    pub fn code(&mut self, codes: &Codes) -> Result<u8, String> {
        if self.n_bits < 16 {
            self.fill();
        }
        let (value, length) = codes.short[(self.buffer >> (64 - LOOK)) as usize];
        if length > 0 {
            self.skip(u32::from(length));
            return Ok(value);
        }
        let next = (self.buffer >> 48) as u32;
        for length in LOOK as usize + 1..=16 {
            if next < codes.ends[length] {
                let code = (next >> (16 - length)) as i32;
                let value = codes.values.get((code + codes.offsets[length]) as usize);
                self.skip(length as u32);
                return value.copied().ok_or_else(wrong_code);
            }
        }
        Err(wrong_code())
    }

    /// Checks that no bits were missing, and goes on after a restart marker.
    ///
    /// # Errors
    /// If bits were missing, or there is no such marker.
    pub fn restart(&mut self) -> Result<(), String> {
        self.check()?;
        let rest = &self.bytes[self.at.min(self.bytes.len())..];
        let marker = rest
            .windows(2)
            .position(|pair| pair[0] == 0xff && pair[1] != 0);
        let marker = marker.ok_or_else(cut_off)?;
        let code = rest[marker + 1];
        if !(0xd0..=0xd7).contains(&code) {
            return Err("has no restart marker in its place".into());
        }
        self.at += marker + 2;
        (self.buffer, self.n_bits, self.n_missing) = (0, 0, 0);
        Ok(())
    }

    /// Ends the scan, and returns the bytes after it.
    ///
    /// # Errors
    /// If bits were missing.
    pub fn end(self) -> Result<&'b [u8], String> {
        self.check()?;
        Ok(&self.bytes[self.at.min(self.bytes.len())..])
    }

    fn check(&self) -> Result<(), String> {
        match self.n_missing > self.n_bits {
            true => Err(cut_off()),
            false => Ok(()),
        }
    }
}

fn wrong_code() -> String {
    "has bits that are no Huffman code".into()
}
