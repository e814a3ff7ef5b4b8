//! The index of a sharded checkpoint, next to two shards.

#![no_main]

use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks_fuzz::{Folder, every_tensor, hostile, said};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = Folder::new();
    let first = hostile::header(&[("down.weight", "F32", &[2], [0, 8])]);
    folder.write("a.safetensors", &hostile::framed(first.as_bytes(), &[0; 8]));
    let second = hostile::header(&[("up.weight", "F32", &[1], [0, 4])]);
    folder.write(
        "b.safetensors",
        &hostile::framed(second.as_bytes(), &[0; 4]),
    );
    let index = folder.write("model.safetensors.index.json", data);
    if let Some(files) = said(TensorFiles::open(index)) {
        every_tensor(&files);
    }
});
