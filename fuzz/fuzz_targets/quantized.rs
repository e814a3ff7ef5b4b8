//! A checkpoint with a `quantization_config`: the `config.json`, and the safetensors file.

#![no_main]

use candle_blocks::Checkpoint;
use candle_blocks_fuzz::{Folder, files, read, said};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let [config, tensors] = files(data)[..] else {
        return;
    };
    let folder = Folder::new();
    folder.write("config.json", config);
    folder.write("model.safetensors", tensors);
    if let Some(checkpoint) = said(Checkpoint::open(folder.root())) {
        read(checkpoint);
    }
});
