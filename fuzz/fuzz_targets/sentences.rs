//! The small files for sentence-transformers and a tokenizer, next to a checkpoint.

#![no_main]

use std::fs;

use candle_blocks::text::TextEmbedder;
use candle_blocks_fuzz::{Folder, files, said};

/// The files in each input, in this order. All others are the checkpoint's own.
const NAMES: [&str; 5] = [
    "modules.json",
    "1_Pooling/config.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
    "tokenizer_config.json",
];
const CHECKPOINT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../weights/text/joined");

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let folder = Folder::new();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let bytes = fs::read(format!("{CHECKPOINT}/{name}")).unwrap();
        folder.write(name, &bytes);
    }
    fs::create_dir(folder.path("1_Pooling")).unwrap();
    for (name, bytes) in NAMES.iter().zip(files(data)) {
        folder.write(name, bytes);
    }
    if let Some(embedder) = said(TextEmbedder::open(folder.root())) {
        said(embedder.embed(&["a text", ""]).map(drop));
    }
});
