//! Vectors over the vocabulary (SPLADE): sentence-transformers' `SparseEncoder` is the judge.

use std::fs;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::text::{Pooling, TextClassifier, TextEmbedder, TextOptions};
use serde_json::{Value, json};

use crate::folder::{change_json, changed, merge};
use crate::{message::message, reference::Reference, texts, weights::weights};

#[test]
fn vectors_over_the_vocabulary_are_those_of_sentence_transformers() {
    let expected = Reference::open("../text/masked/results");
    let folder = weights("text/masked");
    let plain = TextOptions::default().device(DType::F32, &Device::Cpu);
    for embedder in [
        TextEmbedder::open(&folder).unwrap(),
        plain.embedder(&folder).unwrap(),
    ] {
        assert_eq!(
            (embedder.width(), embedder.pooling()),
            (30, &[Pooling::Max][..])
        );
        let vectors = embedder.embed(&texts("masked")).unwrap();
        expected.check("embeddings", &vectors);
        let prompt = embedder.prompt("query").unwrap();
        let prompted = embedder.embed_prompted(&texts("masked"), prompt).unwrap();
        expected.check("prompted", &prompted);
    }
}

#[test]
fn tokens_of_a_vector_are_named_in_the_order_of_their_weights() {
    let decoded = fs::read(weights("text/masked/decoded.json")).unwrap();
    let decoded: Vec<Vec<String>> = serde_json::from_slice(&decoded).unwrap();
    let embedder = TextEmbedder::open(weights("text/masked")).unwrap();
    let vectors = embedder.embed(&texts("masked")).unwrap();
    for (vector, decoded) in vectors.to_vec2::<f32>().unwrap().iter().zip(decoded) {
        let weights = embedder.weighted_tokens(vector).unwrap();
        let tokens: Vec<&String> = weights.iter().map(|(token, _)| token).collect();
        assert_eq!(tokens, decoded.iter().collect::<Vec<_>>());
        let mut sorted: Vec<f32> = vector.iter().copied().filter(|&w| w != 0.0).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(
            weights.iter().map(|pair| pair.1).collect::<Vec<_>>(),
            sorted
        );
    }
    let dense = TextEmbedder::open(weights("text/joined")).unwrap();
    assert!(dense.weighted_tokens(&[1.0]).is_none());
}

/// Older files name no task; the class of the first module does.
#[test]
fn the_class_of_a_masked_language_model_needs_no_task() {
    let vectors = |folder: &std::path::Path| -> Tensor {
        let embedder = TextEmbedder::open(folder).unwrap();
        embedder.embed(&texts("masked")).unwrap()
    };
    let folder = changed("masked", |folder| {
        let class = "sentence_transformers.sparse_encoder.models.MLMTransformer";
        change_json(&folder.join("modules.json"), |modules| {
            modules[0]["type"] = class.into()
        });
        fs::remove_file(folder.join("sentence_bert_config.json")).unwrap();
        let path = folder.join("config_sentence_transformers.json");
        change_json(&path, |keys| {
            drop(keys.as_object_mut().unwrap().remove("model_type"))
        });
    });
    let found = vectors(folder.path());
    assert_eq!(
        crate::bits(&found),
        crate::bits(&vectors(&weights("text/masked")))
    );
}

#[test]
fn files_of_a_sparse_encoder_that_are_not_supported_are_refused_by_name() {
    let module = |class: &str| {
        let class = format!("sentence_transformers.sparse_encoder.modules.{class}");
        json!([
            {"path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
            {"path": "1_SpladePooling", "type": class},
        ])
    };
    let cases: [(&str, Value, &[&str]); 7] = [
        (
            "1_SpladePooling/config.json",
            json!({"pooling_strategy": "mean"}),
            &["pooling_strategy", "\"max\" or \"sum\""],
        ),
        (
            "1_SpladePooling/config.json",
            json!({"activation_function": "gelu"}),
            &["activation_function", "gelu"],
        ),
        (
            "1_SpladePooling/config.json",
            json!({"unheard_of": 1}),
            &["unheard_of"],
        ),
        (
            "config_sentence_transformers.json",
            json!({"max_active_dims": 0}),
            &["max_active_dims", "found 0"],
        ),
        (
            "config.json",
            json!({"architectures": ["BertModel"]}),
            &["fill-mask", "ForMaskedLM"],
        ),
        (
            "modules.json",
            module("sparse_auto_encoder.SparseAutoEncoder"),
            &["1.type", "SparseAutoEncoder", "SpladePooling"],
        ),
        (
            "modules.json",
            module("sparse_static_embedding.SparseStaticEmbedding"),
            &["1.type", "SparseStaticEmbedding"],
        ),
    ];
    for (file, keys, words) in cases {
        let folder = changed("masked", |folder| merge(&folder.join(file), &keys));
        let refusal = message(TextEmbedder::open(folder.path()));
        for word in words {
            assert!(refusal.contains(word), "no {word:?} in {refusal:?}");
        }
    }
    let mean = TextOptions::default().pooling([Pooling::Mean]);
    let refusal = message(mean.embedder(weights("text/masked")));
    assert!(refusal.contains("pool logits"), "{refusal}");
    let refusal = message(TextClassifier::open(weights("text/masked")));
    assert!(
        refusal.contains("SparseEncoder") && refusal.contains("TextEmbedder"),
        "{refusal}"
    );
}
