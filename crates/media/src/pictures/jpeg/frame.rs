//! An image's frame: its size, and its components.

use super::tables::Tables;
use super::transform;

/// An image's components, with their coefficients as scans fill them in.
pub struct Frame {
    pub width: usize,
    pub height: usize,
    pub is_progressive: bool,
    pub components: Vec<Component>,
    /// The largest sampling factors.
    pub most: [usize; 2],
}

/// A component: luma, or a color difference.
pub struct Component {
    pub id: u8,
    /// The sampling factors, across and down.
    pub sampling: [usize; 2],
    /// The quantization table's index.
    table: usize,
    /// The size in samples.
    pub width: usize,
    pub height: usize,
    /// How many blocks are in a row, and how many rows, filled up to whole groups.
    pub blocks: [usize; 2],
    /// The blocks' coefficients, row by row.
    pub coefficients: Vec<[i16; 64]>,
}

impl Frame {
    /// Reads a segment's body. The image has `size`, its width and height.
    ///
    /// # Errors
    /// If it is malformed, or describes another kind or size.
    pub fn new(body: &[u8], is_progressive: bool, size: (usize, usize)) -> Result<Self, String> {
        let &[bits, h0, h1, w0, w1, n, ref rest @ ..] = body else {
            return Err("has a frame that is too short".into());
        };
        let (height, width) = (u16::from_be_bytes([h0, h1]), u16::from_be_bytes([w0, w1]));
        let (width, height) = (usize::from(width), usize::from(height));
        if (width, height) != size {
            return Err("has two sizes".into());
        }
        if bits != 8 || ![1, 3, 4].contains(&n) || width == 0 || height == 0 {
            return Err(format!(
                "has {n} components of {bits} bits and {width} x {height} pixels, expected 1, 3 or 4 of 8 bits, and a size"
            ));
        }
        let described: Vec<&[u8]> = rest.chunks_exact(3).take(usize::from(n)).collect();
        if described.len() < usize::from(n) {
            return Err("has a frame that is too short".into());
        }
        let sampling = |one: &[u8]| [usize::from(one[1] >> 4), usize::from(one[1] & 15)];
        let factors: Vec<[usize; 2]> = described.iter().map(|one| sampling(one)).collect();
        if factors
            .iter()
            .flatten()
            .any(|factor| !(1..=4).contains(factor))
        {
            return Err("has sampling factors outside of 1 to 4".into());
        }
        let most = [0, 1].map(|axis| factors.iter().map(|of| of[axis]).max().unwrap_or(1));
        let groups = [width.div_ceil(8 * most[0]), height.div_ceil(8 * most[1])];
        let component = |(one, sampling): (&&[u8], &[usize; 2])| {
            let blocks = [groups[0] * sampling[0], groups[1] * sampling[1]];
            Component {
                id: one[0],
                sampling: *sampling,
                table: usize::from(one[2]),
                width: (width * sampling[0]).div_ceil(most[0]),
                height: (height * sampling[1]).div_ceil(most[1]),
                blocks,
                coefficients: vec![[0; 64]; blocks[0] * blocks[1]],
            }
        };
        Ok(Self {
            width,
            height,
            is_progressive,
            components: described.iter().zip(&factors).map(component).collect(),
            most,
        })
    }

    /// Returns each component's samples, in rows with whole blocks.
    ///
    /// # Errors
    /// If a quantization table is missing.
    pub fn planes(&self, tables: &Tables) -> Result<Vec<Vec<u8>>, String> {
        let plane = |component: &Component| {
            let table = tables.quantization(component.table)?;
            let width = 8 * component.blocks[0];
            let mut samples = vec![0; width * 8 * component.blocks[1]];
            let rows = samples.chunks_exact_mut(8 * width);
            let blocks = component.coefficients.chunks_exact(component.blocks[0]);
            for (rows, blocks) in rows.zip(blocks) {
                for (i, block) in blocks.iter().enumerate() {
                    transform::inverse(block, table, &mut rows[8 * i..], width);
                }
            }
            Ok(samples)
        };
        self.components.iter().map(plane).collect()
    }
}
