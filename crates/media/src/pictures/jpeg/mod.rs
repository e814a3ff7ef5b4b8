//! JPEG files, with libjpeg-turbo's bits, which PIL's are: the integer transform `jidctint`, "fancy" upsampling, and colors in
//! fixed point. Other decoders round otherwise, and the difference reaches a model.
//!
//! Baseline and progressive files are read, with Huffman coding in 8 bits and one, three or four components: ITU-T T.81,
//! <https://www.w3.org/Graphics/JPEG/itu-t81.pdf>. Where the standard leaves freedom, the code follows
//! <https://github.com/libjpeg-turbo/libjpeg-turbo/tree/3.1.0/src>.

mod color;
mod frame;
mod huffman;
mod scan;
mod segments;
mod tables;
mod transform;
mod upsampling;

use frame::Frame;
use segments::Segments;
use tables::Tables;

/// Checks that a file has its end.
///
/// # Errors
/// If it is cut off.
pub(super) fn check_end(bytes: &[u8]) -> Result<(), String> {
    let mut segments = Segments::new(bytes);
    while segments.next()?.0 != segments::END {}
    Ok(())
}

/// Decodes a file to three bytes for each pixel. The size must be `width` and `height`.
///
/// # Errors
/// If it is damaged, cut off, or has another form.
pub(super) fn decode(bytes: &[u8], width: usize, height: usize) -> Result<Vec<u8>, String> {
    let mut segments = Segments::new(bytes);
    let mut tables = Tables::default();
    let mut marks = color::Marks::default();
    let mut frame: Option<Frame> = None;
    loop {
        let (marker, at) = segments.next()?;
        let body = at.as_slice();
        match marker {
            segments::END => break,
            0xc0..=0xc2 => {
                if frame.is_some() {
                    return Err("has two frames".into());
                }
                frame = Some(Frame::new(body, marker == 0xc2, (width, height))?);
            }
            0xc4 => tables.read_huffman(body)?,
            0xdb => tables.read_quantization(body)?,
            0xdd => tables.read_interval(body)?,
            0xe0 | 0xee => marks.read(marker, body),
            0xda => {
                let frame = frame.as_mut().ok_or("has a scan before its frame")?;
                let rest = scan::decode(frame, &tables, body, segments.rest())?;
                segments.skip_to(rest);
            }
            0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf => {
                return Err(
                    "is lossless, hierarchical or has arithmetic codes, which is not supported"
                        .into(),
                );
            }
            _ => {}
        }
    }
    let frame = frame.ok_or("has no frame")?;
    let planes = frame.planes(&tables)?;
    let ids: Vec<u8> = frame.components.iter().map(|one| one.id).collect();
    for component in &frame.components {
        upsampling::check(&frame, component)?;
    }
    let converter = color::Converter::new(marks.coding(&ids));
    let mut lines = vec![Vec::with_capacity(2 * width); planes.len()];
    let mut rgb = vec![0; 3 * width * height];
    for (y, row) in rgb.chunks_exact_mut(3 * width).enumerate() {
        for ((component, plane), line) in frame.components.iter().zip(&planes).zip(&mut lines) {
            upsampling::row(&frame, component, plane, y, line);
        }
        converter.convert(&lines, row);
    }
    Ok(rgb)
}
