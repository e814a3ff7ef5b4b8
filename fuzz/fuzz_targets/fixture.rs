//! A fixture: PyTorch's results.

#![no_main]

use candle_blocks::verify::Fixture;
use candle_blocks_fuzz::{Folder, said};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = Folder::new();
    let path = folder.write("fixture.safetensors", data);
    said(Fixture::open(&path).map(drop));
    said(Fixture::open_input(&path).map(drop));
});
