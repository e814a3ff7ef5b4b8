//! Images that the script makes too.

use candle_blocks::pictures::Image;

/// Returns an image that hashes each byte's index. Every third seed gives 0 and 255 alone.
pub fn pattern(width: usize, height: usize, seed: u32) -> Image {
    let byte = |i: u32| {
        let mut value = i
            .wrapping_mul(2_654_435_761)
            .wrapping_add(seed.wrapping_mul(40_503));
        value ^= value >> 15;
        value = value.wrapping_mul(2_246_822_519);
        value ^= value >> 13;
        let byte = (value >> 24) as u8;
        match seed % 3 {
            0 => [0, 255][usize::from(byte > 127)],
            _ => byte,
        }
    };
    let bytes = (0..3 * (width * height) as u32).map(byte).collect();
    Image::new(width, height, bytes).unwrap()
}

/// Returns zlib's CRC-32.
pub fn crc(bytes: impl IntoIterator<Item = u8>) -> u32 {
    !bytes.into_iter().fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| match crc & 1 {
            1 => (crc >> 1) ^ 0xedb8_8320,
            _ => crc >> 1,
        })
    })
}

#[test]
fn the_checksum_is_zlibs() {
    assert_eq!(crc(*b"123456789"), 0xcbf4_3926);
}
