//! Models with a vector for each token (ColBERT): sentence-transformers' `MultiVectorEncoder` is the judge, in `changes`.

use std::fs;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::text::{Pooling, TextEmbedder, TextOptions};
use serde_json::{Value, json};

use crate::folder::{change_json, changed, merge};
use crate::{message::message, reference::Reference, texts, weights::weights};

/// Queries whose mask tokens are computed, but to which the model does not attend.
#[test]
fn vectors_of_queries_and_documents_are_the_same_packed_and_in_any_batch() {
    let expected = Reference::open("../text/changes");
    let texts: Vec<String> = texts("joined")
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect();
    let texts = &texts[..4];
    let plain = TextOptions::default().device(DType::F32, &Device::Cpu);
    for embedder in [
        TextEmbedder::open(weights("text/tokens")).unwrap(),
        plain.embedder(weights("text/tokens")).unwrap(),
    ] {
        assert_eq!(
            (embedder.width(), embedder.pooling()),
            (4, &[Pooling::EachToken][..])
        );
        let queries = embedder.query_token_vectors(texts).unwrap();
        let documents = embedder.token_vectors(texts).unwrap();
        for (name, vectors) in [("queries", &queries), ("documents", &documents)] {
            expected.check(name, &Tensor::cat(vectors, 0).unwrap());
        }
        for (text, query) in texts.iter().zip(&queries) {
            let alone = embedder.query_token_vectors(&[text]).unwrap();
            assert_eq!(crate::bits(&alone[0]), crate::bits(query));
            assert_eq!(query.dims(), [9, 4]);
        }
    }
}

#[test]
fn files_of_a_multi_vector_encoder_that_are_not_supported_are_refused_by_name() {
    let transformer = "sentence_bert_config.json";
    let mask = "2_MultiVectorMask/config.json";
    let expansion = |keys: Value| json!({"query_expansion": keys});
    let cases: [(&str, Value, &[&str]); 11] = [
        (
            transformer,
            expansion(json!({"strategy": "most", "length": 9})),
            &["strategy", "most", "fixed"],
        ),
        (
            transformer,
            expansion(json!({"strategy": "fixed"})),
            &["sentence_bert_config.json", "length", "found 0"],
        ),
        (
            transformer,
            expansion(json!({"strategy": "fixed", "length": 21})),
            &["query_expansion", "21", "20 positions"],
        ),
        (
            transformer,
            expansion(json!({"strategy": "min", "length": 9, "token": "[Q]"})),
            &["query_expansion", "[Q]"],
        ),
        (
            transformer,
            expansion(json!({"strategy": "min", "length": 9, "far": 1})),
            &["query_expansion.far"],
        ),
        (
            mask,
            json!({"keep_only_token_ids": [3]}),
            &["keep_only_token_ids"],
        ),
        (mask, json!({"unheard_of": 1}), &["unheard_of"]),
        (
            "config_sentence_transformers.json",
            json!({"query_prefix": "[Q] "}),
            &["PyLate", "MultiVectorEncoder"],
        ),
        (
            "config_sentence_transformers.json",
            json!({"model_type": "ColBERT"}),
            &["PyLate", "MultiVectorEncoder"],
        ),
        (
            "config_sentence_transformers.json",
            json!({"similarity_fn_name": "dot"}),
            &["similarity_fn_name", "dot", "meanmaxsim"],
        ),
        (
            "1_Dense/config.json",
            json!({"in_features": 10}),
            &["linear.weight", "[4, 12]", "[4, 10]"],
        ),
    ];
    for (file, keys, words) in cases {
        let folder = changed("tokens", |folder| merge(&folder.join(file), &keys));
        let refusal = message(TextEmbedder::open(folder.path()));
        for word in words {
            assert!(refusal.contains(word), "no {word:?} in {refusal:?}");
        }
    }
    let unmasked = changed("tokens", |folder| {
        change_json(&folder.join("modules.json"), |modules| {
            modules.as_array_mut().unwrap().remove(2);
        });
    });
    let refusal = message(TextEmbedder::open(unmasked.path()));
    assert!(
        refusal.contains("query_expansion needs a MultiVectorMask"),
        "{refusal}"
    );
    let stanfords = changed("tokens", |folder| {
        fs::remove_file(folder.join("modules.json")).unwrap();
        fs::remove_file(folder.join("config_sentence_transformers.json")).unwrap();
        merge(
            &folder.join("config.json"),
            &json!({"architectures": ["HF_ColBERT"]}),
        );
    });
    let refusal = message(TextEmbedder::open(stanfords.path()));
    assert!(
        refusal.contains("Stanford") && refusal.contains("save_pretrained"),
        "{refusal}"
    );
    let embedder = TextEmbedder::open(weights("text/tokens")).unwrap();
    let refusal = message(embedder.embed(&["boats"]));
    assert!(refusal.contains("token_vectors"), "{refusal}");
    let pooled = TextOptions::default().pooling([Pooling::Mean]);
    let refusal = message(pooled.embedder(weights("text/tokens")));
    assert!(refusal.contains("vector for each token"), "{refusal}");
}
