//! A file of `torch.save` or of NumPy, and a pickle alone.

#![no_main]

use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks_fuzz::{Folder, every_tensor, said, torch_file::zip};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = Folder::new();
    let open = |bytes: &[u8]| {
        if let Some(files) = said(TensorFiles::open(folder.write("pytorch_model.bin", bytes))) {
            every_tensor(&files);
        }
    };
    open(data);
    // Few changes of an archive leave its directory whole.
    if !data.starts_with(b"PK") {
        open(&zip(&[("m/data.pkl", data), ("m/data/0", &[7; 64])]));
    }
});
