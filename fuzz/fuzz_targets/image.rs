//! An image file in any format: decoded, or refused with its name.

#![no_main]

use candle_blocks::pictures::Image;
use candle_blocks_fuzz::said;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    if let Some(image) = said(Image::decode("fuzzed", data)) {
        assert_eq!(image.bytes().len(), 3 * image.width() * image.height());
    }
});
