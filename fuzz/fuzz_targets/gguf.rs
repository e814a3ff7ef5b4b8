//! A GGUF file.

#![no_main]

use candle_blocks::{Checkpoint, checkpoint::files::TensorFiles};
use candle_blocks_fuzz::{Folder, every_tensor, read, said};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = Folder::new();
    let path = folder.write("model.gguf", data);
    if let Some(files) = said(TensorFiles::open(&path)) {
        every_tensor(&files);
    }
    if let Some(checkpoint) = said(Checkpoint::open(&path)) {
        read(checkpoint);
    }
});
