//! The color that a file without an alpha channel declares as transparent: what PIL keeps of it in `convert("RGB")`.

/// Returns the color in a PNG file's tRNS chunk. A palette with several transparent colors, or with translucent ones, has none.
pub(super) fn of_png(bytes: &[u8]) -> Option<[u8; 3]> {
    let (depth, color_type) = (*bytes.get(24)?, *bytes.get(25)?);
    let mut palette: &[u8] = &[];
    let mut rest = bytes.get(8..)?;
    loop {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (kind, after) = after.split_first_chunk::<4>()?;
        let data = after.get(..length)?;
        // PIL reads the lower bytes of samples.
        let sample = |i: usize| data.get(2 * i + 1).copied();
        match kind {
            b"PLTE" => palette = data,
            b"IDAT" => return None,
            b"tRNS" => {
                return match (color_type, depth) {
                    // PIL compares such a value with red alone.
                    (0, 1 | 16) => Some([sample(0)?, 0, 0]),
                    (0, _) => Some([sample(0)?; 3]),
                    (2, _) => Some([sample(0)?, sample(1)?, sample(2)?]),
                    _ => {
                        let mut others = data.iter().filter(|&&alpha| alpha != 255);
                        let is_single = others.next() == Some(&0) && others.next().is_none();
                        let i = data.iter().position(|&alpha| alpha == 0)?;
                        let color = palette.get(3 * i..3 * i + 3)?;
                        is_single.then(|| [color[0], color[1], color[2]])
                    }
                };
            }
            _ => {}
        }
        rest = after.get(length + 4..)?;
    }
}

/// Returns the color of a GIF file's first transparent pixel, given the samples with an alpha channel.
pub(super) fn of_gif(samples: &[u8]) -> Option<[u8; 3]> {
    let pixel = samples.chunks_exact(4).find(|rgba| rgba[3] == 0)?;
    Some([pixel[0], pixel[1], pixel[2]])
}
