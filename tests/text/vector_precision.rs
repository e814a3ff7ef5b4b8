//! Truncated and quantized vectors: sentence-transformers is the judge.

use std::fs;

use candle_blocks::candle_core::{Device, Tensor};
use candle_blocks::text::{Pooling, QuantizedVectors, TextEmbedder, TextOptions, VectorPrecision};
use serde_json::{Value, json};

use crate::folder::{changed, merge};
use crate::message::message;
use crate::texts;
use crate::weights::{is_present, weights};

fn tensor(rows: &Value) -> Tensor {
    let rows: Vec<Vec<f64>> = serde_json::from_value(rows.clone()).unwrap();
    let rows: Vec<Vec<f32>> = rows
        .iter()
        .map(|row| row.iter().map(|&x| x as f32).collect())
        .collect();
    Tensor::new(rows, &Device::Cpu).unwrap()
}

fn assert_same(ours: &QuantizedVectors, theirs: &Value) {
    let theirs: Vec<Vec<i16>> = serde_json::from_value(theirs.clone()).unwrap();
    assert_eq!(ours.rows().collect::<Vec<_>>(), theirs);
    assert_eq!(ours.width(), theirs[0].len());
    assert_eq!(ours.bytes().len(), theirs.len() * theirs[0].len());
}

#[test]
fn quantized_vectors_are_those_of_sentence_transformers() {
    if !is_present("tasks") {
        return;
    }
    let text = fs::read_to_string(weights("tasks/quantized_vectors.json")).unwrap();
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 4);
    for case in &cases {
        let [vectors, others, ranges] =
            ["vectors", "others", "ranges"].map(|name| tensor(&case[name]));
        for (name, expected) in case["own"].as_object().unwrap() {
            let precision: VectorPrecision = name.parse().unwrap();
            let quantized = precision.quantize(&vectors, None).unwrap();
            assert_eq!(quantized.precision(), precision);
            assert_same(&quantized, expected);
        }
        let of_others = VectorPrecision::ranges(&others).unwrap();
        for (name, expected) in case["calibrated"].as_object().unwrap() {
            for ranges in [&ranges, &of_others] {
                let precision: VectorPrecision = name.parse().unwrap();
                assert_same(
                    &precision.quantize(&vectors, Some(ranges)).unwrap(),
                    expected,
                );
            }
        }
    }
}

#[test]
fn vectors_that_cannot_be_quantized_are_refused() {
    let one = tensor(&json!([[1.0, 2.0]]));
    let two = tensor(&json!([[1.0, 2.0], [3.0, 4.0]]));
    let narrow = tensor(&json!([[1.0], [3.0]]));
    let endless = (&two / 0.0).unwrap();
    use VectorPrecision::{Binary, Int8, Uint8};
    for (refusal, words) in [
        (message(Int8.quantize(&one, None)), "at least 2"),
        (
            message(Int8.quantize(&two, Some(&narrow))),
            "expected [2, 2]",
        ),
        (message(Uint8.quantize(&endless, None)), "inf"),
        (message(Uint8.quantize(&two, Some(&endless))), "not finite"),
        (message(Binary.quantize(&two, Some(&two))), "binary"),
        (message("int4".parse::<VectorPrecision>()), "ubinary"),
    ] {
        assert!(refusal.contains(words), "no {words:?} in {refusal:?}");
    }
    let bits = Binary.quantize(&one, None).unwrap();
    assert_eq!(bits.rows().collect::<Vec<_>>(), [[64]]); // 0b11000000 - 128
}

#[test]
fn truncated_vectors_begin_like_whole_ones() {
    let texts = texts("joined");
    let rows = |embedder: TextEmbedder| -> Vec<Vec<f32>> {
        embedder.embed(&texts).unwrap().to_vec2().unwrap()
    };
    let whole = rows(TextEmbedder::open(weights("text/joined")).unwrap());
    let options = TextOptions::default().truncate_dim(3);
    // A caller's number replaces that of the files.
    let folder = changed("joined", |folder| {
        let settings = folder.join("config_sentence_transformers.json");
        merge(&settings, &json!({"truncate_dim": 2}));
    });
    for folder in [folder.path(), &weights("text/joined")] {
        let embedder = options.clone().embedder(folder).unwrap();
        assert_eq!(embedder.width(), 3);
        let first: Vec<_> = whole.iter().map(|row| row[..3].to_vec()).collect();
        assert_eq!(rows(embedder), first);
    }
    let normalized = options.clone().normalize(true);
    for row in rows(normalized.embedder(weights("text/joined")).unwrap()) {
        let length: f32 = row.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-5, "{row:?}");
    }
    let wide = TextOptions::default().truncate_dim(1000);
    assert_eq!(rows(wide.embedder(weights("text/joined")).unwrap()), whole);
    for (refusal, words) in [
        (
            message(
                TextOptions::default()
                    .truncate_dim(0)
                    .embedder(weights("text/joined")),
            ),
            "found 0",
        ),
        (
            message(options.clone().embedder(weights("text/masked"))),
            "truncate_dim",
        ),
        (
            message(options.clone().embedder(weights("text/tokens"))),
            "truncate_dim",
        ),
        (
            message(options.clone().classifier(weights("text/labels"))),
            "truncate_dim",
        ),
        (
            message(
                options
                    .pooling([Pooling::Mean])
                    .mask_filler(weights("text/masked")),
            ),
            "pooling",
        ),
    ] {
        assert!(refusal.contains(words), "no {words:?} in {refusal:?}");
    }
}
