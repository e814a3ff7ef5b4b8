//! The heads beside BGE-M3's weights: FlagEmbedding's arithmetic, computed by PyTorch, is the judge.

use std::fs;
use std::path::Path;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::text::{Pooling, TextEmbedder, TextOptions};
use serde_json::json;

use crate::folder::{changed, merge};
use crate::{message::message, reference::Reference, texts, weights::weights};

/// Returns an encoder with the heads.
fn with_heads(change: impl FnOnce(&Path)) -> tempfile::TempDir {
    changed("joined", |folder| {
        for name in ["sparse_linear.pt", "colbert_linear.pt"] {
            fs::copy(weights(&format!("text/heads/{name}")), folder.join(name)).unwrap();
        }
        let path = folder.join("tokenizer_config.json");
        merge(&path, &json!({"eos_token": "[SEP]"}));
        change(folder);
    })
}

fn with(pooling: Pooling) -> [TextOptions; 2] {
    let options = TextOptions::default().pooling([pooling]);
    [options.clone(), options.device(DType::F32, &Device::Cpu)]
}

#[test]
fn lexical_weights_and_vectors_of_tokens_are_those_of_flag_embedding() {
    let folder = with_heads(|_| ());
    let expected = Reference::open("../text/heads/results");
    assert_eq!(expected.names().len(), 6);
    for options in with(Pooling::Lexical) {
        let embedder = options.embedder(folder.path()).unwrap();
        assert_eq!(embedder.width(), 30);
        let weights = embedder.embed(&texts("heads")).unwrap();
        expected.check("lexical", &weights);
        let first = weights.get(0).unwrap().to_vec1::<f32>().unwrap();
        let named = embedder.weighted_tokens(&first).unwrap();
        assert!(
            named.len() > 3 && named.is_sorted_by(|a, b| a.1 >= b.1),
            "{named:?}"
        );
        assert!(
            named.iter().all(|(token, _)| !token.starts_with('[')),
            "{named:?}"
        );
    }
    for options in with(Pooling::EachToken) {
        let embedder = options.embedder(folder.path()).unwrap();
        assert_eq!(embedder.width(), 6);
        let vectors = embedder.token_vectors(&texts("heads")).unwrap();
        expected.check("each_token", &Tensor::cat(&vectors, 0).unwrap());
        let score = |query| {
            let scores = vectors
                .iter()
                .map(|document| embedder.max_sim(query, document));
            scores.collect::<candle_blocks::Result<Vec<_>>>().unwrap()
        };
        let scores: Vec<Vec<f32>> = vectors.iter().map(score).collect();
        expected.check("max_sim", &Tensor::new(scores, &Device::Cpu).unwrap());
    }
    let dense = TextEmbedder::open(folder.path()).unwrap();
    let without = TextEmbedder::open(weights("text/joined")).unwrap();
    let vectors = |embedder: &TextEmbedder| crate::bits(&embedder.embed(&texts("heads")).unwrap());
    assert_eq!(vectors(&dense), vectors(&without));
}

#[test]
fn heads_that_are_missing_or_of_another_model_are_refused_by_name() {
    let open = |folder: &Path, kinds: &[Pooling]| {
        message(
            TextOptions::default()
                .pooling(kinds.to_vec())
                .embedder(folder),
        )
    };
    for (kinds, words) in [
        (vec![Pooling::Lexical], ["sparse_linear.pt", "bge-m3"]),
        (vec![Pooling::EachToken], ["colbert_linear.pt", "missing"]),
        (vec![Pooling::Mean, Pooling::Lexical], ["lexical", "alone"]),
    ] {
        let refusal = open(&weights("text/joined"), &kinds);
        for word in words {
            assert!(refusal.contains(word), "no {word:?} in {refusal:?}");
        }
    }
    let swapped = with_heads(|folder| {
        let [sparse, colbert] = ["sparse_linear.pt", "colbert_linear.pt"].map(|f| folder.join(f));
        fs::copy(colbert, sparse).unwrap();
    });
    let refusal = open(swapped.path(), &[Pooling::Lexical]);
    assert!(
        refusal.contains("sparse_linear.pt") && refusal.contains("[1, 24]"),
        "{refusal}"
    );
    let folder = with_heads(|_| ());
    let normalized = TextOptions::default()
        .pooling([Pooling::EachToken])
        .normalize(false);
    let refusal = message(normalized.embedder(folder.path()));
    assert!(refusal.contains("normalize"), "{refusal}");
    let [tokens, _] = with(Pooling::EachToken);
    let refusal = message(tokens.embedder(folder.path()).unwrap().embed(&["boats"]));
    assert!(refusal.contains("token_vectors"), "{refusal}");
    let dense = TextEmbedder::open(folder.path()).unwrap();
    let refusal = message(dense.token_vectors(&["boats"]));
    assert!(refusal.contains("each_token"), "{refusal}");
    let named = changed("joined", |folder| {
        merge(
            &folder.join("1_Pooling/config.json"),
            &json!({"pooling_mode": "lexical"}),
        );
    });
    let refusal = message(TextEmbedder::open(named.path()));
    assert!(
        refusal.contains("pooling_mode") && refusal.contains("weightedmean"),
        "{refusal}"
    );
}
