//! Rankings of texts for queries: sentence-transformers is the judge.

use std::fs;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::text::{
    FunctionToApply, Pooling, RankedText, TextEmbedder, TextOptions, TextRanker,
};
use serde_json::{Value, json};

use crate::folder::{changed, merge};
use crate::message::message;
use crate::weights::{is_present, weights};

/// The largest difference between a score here and PyTorch's; both round sums in f32. Distances and sums are larger than 1.
const CLOSE: f64 = 4e-6;
const SETTINGS: &str = "config_sentence_transformers.json";

fn strings(value: &Value) -> Vec<String> {
    let all = value.as_array().unwrap().iter();
    all.map(|one| one.as_str().unwrap().to_string()).collect()
}

/// Compares a ranking with a list of `corpus_id` and `score`: each document's score, and the order of all scores that are not
/// nearly equal. Documents with the same text keep their order.
#[track_caller]
fn assert_same(ours: &[RankedText], theirs: &Value, documents: &[String], about: &str) {
    let theirs = theirs.as_array().unwrap();
    assert_eq!(ours.len(), theirs.len(), "{about}");
    let id = |one: &Value| one["corpus_id"].as_u64().unwrap() as usize;
    for (ours, theirs_here) in ours.iter().zip(theirs) {
        let theirs = theirs.iter().find(|one| id(one) == ours.corpus_id).unwrap();
        let [score, here] = [theirs, theirs_here].map(|one| one["score"].as_f64().unwrap());
        let close = CLOSE * score.abs().max(1.0);
        let differences = [f64::from(ours.score) - score, score - here];
        assert!(
            differences.iter().all(|x| x.abs() <= close),
            "{about}: {ours:?}, not {theirs}, at the place of {theirs_here}"
        );
    }
    for pair in ours.windows(2) {
        let [one, next] = [pair[0].corpus_id, pair[1].corpus_id];
        assert!(one < next || documents[one] != documents[next], "{about}");
    }
}

#[test]
fn rankings_are_those_of_sentence_transformers_for_every_kind_of_model() {
    if !is_present("tasks") {
        return;
    }
    let text = fs::read_to_string(weights("tasks/rankings.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let documents = strings(&all["documents"]);
    let cases = all["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 19);
    for case in cases {
        let folder = changed(case["model"].as_str().unwrap(), |folder| {
            for (name, keys) in case["changes"].as_object().unwrap() {
                merge(&folder.join(name), keys);
            }
        });
        let plain = TextOptions::default().device(DType::F32, &Device::Cpu);
        for ranker in [
            TextRanker::open(folder.path()).unwrap(),
            plain.ranker(folder.path()).unwrap(),
        ] {
            let rankings = case["rankings"].as_array().unwrap();
            for (query, expected) in strings(&all["queries"]).iter().zip(rankings) {
                let about = format!("{} {} {query:?}", case["model"], case["changes"]);
                let ranked = ranker.rank(query, &documents).unwrap();
                assert_same(&ranked, expected, &documents, &about);
                // A document's score does not depend on the others.
                let alone = ranker.scores(query, &documents[2..3]).unwrap();
                let with_others = ranker.scores(query, &documents).unwrap();
                assert_eq!(alone[0].to_bits(), with_others[2].to_bits(), "{about}");
            }
            assert!(ranker.rank("boats", &[""; 0]).unwrap().is_empty());
        }
    }
}

/// The options have the effect of the files' settings.
#[test]
fn vectors_are_truncated_for_a_ranking_by_an_option_too() {
    if !is_present("tasks") {
        return;
    }
    let text = fs::read_to_string(weights("tasks/rankings.json")).unwrap();
    let all: Value = serde_json::from_str(&text).unwrap();
    let documents = strings(&all["documents"]);
    let case = &all["cases"][1];
    assert_eq!(case["changes"][SETTINGS]["truncate_dim"], 3);
    let folder = changed("joined", |folder| {
        merge(
            &folder.join(SETTINGS),
            &json!({"similarity_fn_name": "dot"}),
        );
    });
    let ranker = TextOptions::default()
        .truncate_dim(3)
        .ranker(folder.path())
        .unwrap();
    for (query, expected) in strings(&all["queries"])
        .iter()
        .zip(case["rankings"].as_array().unwrap())
    {
        let ranked = ranker.rank(query, &documents).unwrap();
        assert_same(&ranked, expected, &documents, query);
        let once = ranker.query(query).unwrap();
        let scores = ranker.scores_of(&once, &documents).unwrap();
        assert_eq!(RankedText::ranking(&scores), ranked);
    }
    let pairs = TextRanker::open(weights("text/ranker")).unwrap();
    let refusal = message(pairs.scores_of(&ranker.query("boats").unwrap(), &documents));
    assert!(refusal.contains("another kind"), "{refusal}");
}

#[test]
fn equal_scores_keep_their_order() {
    let ranked = RankedText::ranking(&[0.0, 2.0, -0.0, 2.0, -1.0]);
    let order: Vec<_> = ranked.iter().map(|one| one.corpus_id).collect();
    assert_eq!(order, [1, 3, 0, 2, 4]);
    assert_eq!(RankedText::ranking(&[f32::NAN, 1.0, f32::NAN]).len(), 3);
}

#[test]
fn a_prompt_of_the_caller_precedes_the_query_alone() {
    let embedder = TextRanker::open(weights("text/masked")).unwrap();
    let plain = embedder.clone().with_query_prompt("");
    let prompted = plain.scores("query: boats", &["sand"]).unwrap();
    assert_eq!(embedder.scores("boats", &["sand"]).unwrap(), prompted);
    let classifier = TextRanker::open(weights("text/ranker")).unwrap();
    let written = classifier.scores("the boats", &["sand"]).unwrap();
    let prompted = classifier.with_query_prompt("the ");
    assert_eq!(prompted.scores("boats", &["sand"]).unwrap(), written);
    let tokens = TextRanker::open(weights("text/tokens")).unwrap();
    let refusal = message(tokens.with_query_prompt("a").scores("boats", &["sand"]));
    assert!(refusal.contains("prompt"), "{refusal}");
}

#[test]
fn models_and_options_that_rank_nothing_are_refused() {
    let default = TextOptions::default;
    for (name, options, words) in [
        ("labels", default(), "3 labels"),
        ("ranker", default().normalize(true), "normalize"),
        (
            "joined",
            default().function_to_apply(FunctionToApply::None),
            "function_to_apply",
        ),
    ] {
        let refusal = message(options.ranker(weights(&format!("text/{name}"))));
        assert!(refusal.contains(words), "no {words:?} in {refusal:?}");
    }
    // A classifier without a modules.json becomes an embedder by a pooling.
    let embedder = default().pooling([Pooling::Mean]);
    let ranker = embedder.ranker(weights("text/labels")).unwrap();
    let scores = ranker.scores("sand", &["sand", "boats"]).unwrap();
    assert!((scores[0] - 1.0).abs() < 1e-6 && scores[1] < 1.0);
    for (key, value, words) in [
        ("similarity_fn_name", json!("cos"), "\"cosine\""),
        ("similarity_fn_name", json!("maxsim"), "\"manhattan\""),
        ("similarity_fn_name", json!(3), "similarity_fn_name"),
    ] {
        let folder = changed("joined", |folder| {
            merge(&folder.join(SETTINGS), &json!({key: value}));
        });
        let refusal = message(TextRanker::open(folder.path()));
        assert!(
            refusal.contains(words) && refusal.contains(SETTINGS),
            "{refusal}"
        );
    }
}

#[test]
fn similarity_compares_all_queries_with_all_documents() {
    let embedder = TextEmbedder::open(weights("text/joined")).unwrap();
    let queries = embedder.embed(&["boats", "sand"]).unwrap();
    let documents = embedder.embed(&["sand", "tide", "boats"]).unwrap();
    let similarity = embedder.similarity(&queries, &documents).unwrap();
    let similarity: Vec<Vec<f32>> = similarity.to_vec2().unwrap();
    assert!((similarity[0][2] - 1.0).abs() < 1e-6 && (similarity[1][0] - 1.0).abs() < 1e-6);
    let narrow = Tensor::zeros((1, 2), DType::F32, &Device::Cpu).unwrap();
    let refusal = message(embedder.similarity(&queries, &narrow));
    assert!(refusal.contains("documents"), "{refusal}");
    let tokens = TextEmbedder::open(weights("text/tokens")).unwrap();
    let refusal = message(tokens.similarity(&narrow, &narrow));
    assert!(refusal.contains("max_sim"), "{refusal}");
}
