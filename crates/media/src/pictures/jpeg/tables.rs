//! Tables: Huffman's, and the divisors by which coefficients were quantized.

use super::huffman::Codes;

/// Each coefficient's place in a block, in a file's order.
pub const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// The tables that were read before a scan.
#[derive(Default)]
pub struct Tables {
    /// Tables for the lowest frequency, and for the others.
    codes: [[Option<Codes>; 4]; 2],
    quantization: [Option<[i32; 64]>; 4],
    /// How many groups lie between two restart markers; 0 without such markers.
    pub interval: usize,
}

impl Tables {
    /// Reads Huffman tables.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn read_huffman(&mut self, mut body: &[u8]) -> Result<(), String> {
        let short = || "has a Huffman table that is too short".to_string();
        while let Some((&kind, rest)) = body.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>().ok_or_else(short)?;
            let n: usize = counts.iter().map(|&n| usize::from(n)).sum();
            let values = rest.get(..n).ok_or_else(short)?;
            let (class, index) = (usize::from(kind >> 4), usize::from(kind & 15));
            let place = self.codes.get_mut(class).and_then(|of| of.get_mut(index));
            *place.ok_or("has a Huffman table of an unknown kind")? =
                Some(Codes::new(counts, values)?);
            body = &rest[n..];
        }
        Ok(())
    }

    /// Reads quantization tables.
    ///
    /// # Errors
    /// If they are malformed.
    pub fn read_quantization(&mut self, mut body: &[u8]) -> Result<(), String> {
        while let Some((&kind, rest)) = body.split_first() {
            let n_bytes = 1 + usize::from(kind >> 4 != 0);
            let short = "has a quantization table that is too short";
            let values = rest.get(..64 * n_bytes).ok_or(short)?;
            let mut table = [0; 64];
            for (value, &place) in values.chunks_exact(n_bytes).zip(&ZIGZAG) {
                table[usize::from(place)] = value
                    .iter()
                    .fold(0, |sum, &byte| (sum << 8) + i32::from(byte));
            }
            let place = self.quantization.get_mut(usize::from(kind & 15));
            *place.ok_or("has a quantization table of an unknown kind")? = Some(table);
            body = &rest[64 * n_bytes..];
        }
        Ok(())
    }

    /// Reads the distance between restart markers.
    ///
    /// # Errors
    /// If it is malformed.
    pub fn read_interval(&mut self, body: &[u8]) -> Result<(), String> {
        let &[high, low, ..] = body else {
            return Err("has a restart interval that is too short".into());
        };
        self.interval = usize::from(u16::from_be_bytes([high, low]));
        Ok(())
    }

    /// Returns a quantization table.
    ///
    /// # Errors
    /// If it is missing.
    pub fn quantization(&self, index: usize) -> Result<&[i32; 64], String> {
        let table = self.quantization.get(index).and_then(Option::as_ref);
        table.ok_or_else(|| format!("lacks quantization table {index}"))
    }

    /// Returns a Huffman table.
    ///
    /// # Errors
    /// If it is missing.
    pub fn codes(&self, class: usize, index: u8) -> Result<&Codes, String> {
        let codes = self.codes[class]
            .get(usize::from(index))
            .and_then(Option::as_ref);
        codes.ok_or_else(|| format!("lacks Huffman table {index}"))
    }
}
