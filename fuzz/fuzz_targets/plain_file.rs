//! `W1, b1, W2, b2` without a `config.json`.

#![no_main]

use candle_blocks::{
    Activation, NormPlacement, PlainFile,
    candle_core::{DType, Device},
};
use candle_blocks_fuzz::{Folder, said};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = Folder::new();
    let path = folder.write("model.safetensors", data);
    let Some(file) = said(PlainFile::open(path)) else {
        return;
    };
    let (gelu, dtype, cpu) = (Activation::Gelu, DType::F32, Device::Cpu);
    said(file.rms_norm(1e-5, dtype, &cpu).map(drop));
    said(file.mlp(gelu, dtype, &cpu).map(drop));
    said(file.feed_forward(gelu, dtype, &cpu).map(drop));
    said(
        file.sublayer(gelu, NormPlacement::Pre, 1e-5, dtype, &cpu)
            .map(drop),
    );
});
