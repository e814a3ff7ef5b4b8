//! A real model, where the environment says where it is.

use std::path::PathBuf;

use candle_blocks::text::TextEmbedder;

use crate::{
    bits,
    reference::Reference,
    texts,
    weights::{is_present, left_out},
};

/// The directory of sentence-transformers/all-MiniLM-L6-v2.
const VARIABLE: &str = "CANDLE_BLOCKS_MINILM";

#[test]
fn vectors_of_minilm_are_those_of_sentence_transformers() {
    let Some(folder) = std::env::var_os(VARIABLE).map(PathBuf::from) else {
        return left_out(&format!(
            "vectors of MiniLM: {VARIABLE} does not name its directory"
        ));
    };
    if !is_present("text/minilm.safetensors") {
        return;
    }
    let embedder = TextEmbedder::open(folder).unwrap();
    let mut all = texts("joined");
    let short = all.clone();
    all.extend([1, 3, 9].map(|times| vec![short.join(" "); times].join(" ")));
    let vectors = embedder.embed(&all).unwrap();
    let reference = Reference::open("../text/minilm");
    reference.check("embeddings", &vectors);
    let difference = (&vectors - reference.get("embeddings"))
        .unwrap()
        .abs()
        .unwrap();
    let most = difference.max_all().unwrap().to_scalar::<f32>().unwrap();
    assert!(most < 1e-6, "{most}");
    let alone: Vec<_> = all
        .iter()
        .flat_map(|text| bits(&embedder.embed(&[text]).unwrap()))
        .collect();
    assert_eq!(bits(&vectors), alone);
}
