//! A text's vector does not depend on the texts beside it.

use candle_blocks::candle_core::{DType, Device};
use candle_blocks::text::{TextEmbedder, TextOptions};

use crate::{bits, texts, weights::weights};

#[test]
fn a_text_has_the_same_bits_alone_and_in_any_batch() {
    for name in ["joined", "last"] {
        let folder = weights(&format!("text/{name}"));
        let plain = TextOptions::default().device(DType::F32, &Device::Cpu);
        for embedder in [
            TextEmbedder::open(&folder).unwrap(),
            plain.embedder(&folder).unwrap(),
        ] {
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
