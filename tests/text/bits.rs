//! A text's vector does not depend on the texts beside it.

use candle_blocks::Precision;
use candle_blocks::candle_core::{DType, Device};
use candle_blocks::text::{Pooling, TextEmbedder, TextOptions};
use serde_json::{Map, Value, json};

use crate::{
    bits, texts,
    weights::{is_present, weights},
};

#[test]
fn a_text_has_the_same_bits_alone_and_in_any_batch() {
    for name in ["joined", "last"] {
        let folder = weights(&format!("text/{name}"));
        let mut forms = vec![TextOptions::default().device(DType::F32, &Device::Cpu)];
        let packed = [
            Precision::F32,
            Precision::Bf16,
            Precision::Int8,
            Precision::INT4,
        ];
        forms.extend(packed.map(|precision| TextOptions::default().precision(precision)));
        for form in forms {
            let embedder = form.embedder(&folder).unwrap();
            let mut texts = texts(name);
            let alone: Vec<_> = texts
                .iter()
                .flat_map(|text| bits(&embedder.embed(&[text]).unwrap()))
                .collect();
            assert_eq!(bits(&embedder.embed(&texts).unwrap()), alone);
            // Enough for several batches, in another order.
            texts.reverse();
            let many = vec![texts; 60].concat();
            let expected: Vec<_> = alone.iter().rev().cloned().collect();
            assert_eq!(
                bits(&embedder.embed(&many).unwrap()),
                vec![expected; 60].concat()
            );
        }
    }
}

#[test]
fn no_text_gives_no_vector() {
    let embedder = TextEmbedder::open(weights("text/joined")).unwrap();
    let none: [&str; 0] = [];
    assert_eq!(embedder.embed(&none).unwrap().dims(), [0, embedder.width()]);
}

/// ALiBi, relative positions, windows: whatever a family does, and whether or not its padding can be left out.
#[test]
fn every_family_gives_a_text_the_same_bits_alone_and_in_any_batch() {
    if !is_present("families") {
        return;
    }
    let words: Vec<String> = (0..8).map(|i| format!("w{i}")).collect();
    let vocabulary: Map<String, Value> =
        words.iter().cloned().zip((0..).map(Value::from)).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": null, "decoder": null, "truncation": null, "padding": null,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "w1"},
    });
    let texts: Vec<String> = (1..=6).map(|n| words[8 - n..].join(" ")).collect();
    let mut n_families = 0;
    for family in std::fs::read_dir(weights("families")).unwrap() {
        let family = family.unwrap().path();
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(family.join(file), folder.path().join(file)).unwrap();
        }
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let options = TextOptions::default().pooling([Pooling::Mean, Pooling::LastToken]);
        // Models for images, with two stacks, after an encoder, or without embeddings.
        let Ok(embedder) = options.embedder(folder.path()) else {
            continue;
        };
        let alone: Vec<_> = texts
            .iter()
            .flat_map(|text| bits(&embedder.embed(&[text]).unwrap()))
            .collect();
        let together = bits(&embedder.embed(&texts).unwrap());
        assert_eq!(together, alone, "{}", family.display());
        n_families += 1;
    }
    assert!(n_families >= 8, "only {n_families} families");
}
