//! A family's table in JSON, and a `config.json` that it reads.

#![no_main]

use candle_blocks::CheckpointOptions;
use candle_blocks::checkpoint::scheme::Family;
use candle_blocks_fuzz::{Folder, files, said};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = Folder::new();
    let files = files(data);
    let table = folder.write("family.json", files[0]);
    let Some(family) = said(Family::from_json_file(table)) else {
        return;
    };
    if let Some(config) = files.get(1) {
        folder.write("config.json", config);
        said(
            CheckpointOptions::default()
                .family(family)
                .architecture(folder.root())
                .map(drop),
        );
    }
});
