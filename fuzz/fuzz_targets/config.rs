//! A `config.json` for any family, without weights.

#![no_main]

use candle_blocks::{Architecture, CheckpointOptions};
use candle_blocks_fuzz::{Folder, said};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = Folder::new();
    folder.write("config.json", data);
    if let Some(architecture) = said(Architecture::open(folder.root())) {
        said(architecture.model_config().map(drop));
    }
    said(
        CheckpointOptions::default()
            .whole()
            .architecture(folder.root())
            .map(drop),
    );
});
