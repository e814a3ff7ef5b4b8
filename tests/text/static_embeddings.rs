//! Tables of vectors, and models with a `Router`: model2vec and sentence-transformers are the judges.

use std::fs;

use candle_blocks::Precision;
use candle_blocks::candle_core::Tensor;
use candle_blocks::text::{Pooling, TextEmbedder, TextOptions, TextRole};
use serde_json::{Value, json};

use crate::folder::{copied, merge};
use crate::message::message;
use crate::weights::{is_present, weights};

/// The largest difference of a feature computed in f32, and the largest one where the judge rounds to f16, both relative to the
/// largest feature.
const CLOSE: f32 = 4e-7;
const CLOSE_IN_F16: f32 = 1e-3;

fn results(name: &str) -> Value {
    let path = weights(&format!("tasks/{name}/results.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn texts(results: &Value) -> Vec<String> {
    serde_json::from_value(results["texts"].clone()).unwrap()
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &Value, tolerance: f32) {
    let found = found.to_vec2::<f32>().unwrap();
    let expected: Vec<Vec<f32>> = serde_json::from_value(expected.clone()).unwrap();
    assert_eq!(found.len(), expected.len());
    let most = expected
        .iter()
        .flatten()
        .fold(0f32, |most, x| most.max(x.abs()));
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert_eq!(found.len(), expected.len());
        for (x, y) in found.iter().zip(expected) {
            let difference = (x - y).abs() / most;
            assert!(
                difference <= tolerance,
                "text {i}, {difference}: {found:?}, not {expected:?}"
            );
        }
    }
}

#[test]
fn folders_of_model2vec_give_its_vectors_and_with_modules_those_of_sentence_transformers() {
    if !is_present("tasks") {
        return;
    }
    for (name, tolerance, max_length) in [
        ("static-words", CLOSE, Some(8)),
        ("static-shared", CLOSE_IN_F16, Some(512)),
        ("static-bytes", CLOSE, None),
    ] {
        let expected = results(name);
        let texts = texts(&expected);
        let embedder = TextEmbedder::open(weights(&format!("tasks/{name}"))).unwrap();
        assert!(embedder.model().is_none() && embedder.pooling().is_empty());
        assert_eq!((embedder.width(), embedder.max_length()), (7, max_length));
        assert_eq!(embedder.notes(), Vec::<String>::new());
        let found = embedder.embed(&texts).unwrap();
        assert_close(&found, &expected["vectors"], tolerance);
        let alone = embedder.embed(&texts[3..4]).unwrap();
        assert_eq!(crate::bits(&alone)[0], crate::bits(&found)[3]);
        let folder = copied(&format!("tasks/{name}"));
        merge(&folder.path().join("modules.json"), &expected["modules"]);
        let embedder = TextEmbedder::open(folder.path()).unwrap();
        match &expected["sentence_transformers"] {
            Value::Null => assert_eq!(name, "static-bytes"),
            expected => assert_close(&embedder.embed(&texts).unwrap(), expected, tolerance),
        }
    }
}

#[test]
fn modules_prompts_and_options_apply_to_static_embeddings() {
    if !is_present("tasks") {
        return;
    }
    let expected = results("static-modules");
    let texts = texts(&expected);
    let path = weights("tasks/static-modules");
    let embedder = TextEmbedder::open(&path).unwrap();
    assert_eq!(embedder.max_length(), Some(10));
    assert_close(
        &embedder.embed(&texts).unwrap(),
        &expected["vectors"],
        CLOSE,
    );
    let queries = embedder.embed_as(TextRole::Query, &texts).unwrap();
    assert_close(&queries, &expected["query"], CLOSE);
    let prompt = embedder.prompt("query").unwrap();
    let again = embedder
        .embed_as_prompted(TextRole::Document, &texts, prompt)
        .unwrap();
    assert_eq!(crate::bits(&again), crate::bits(&queries));
    let short = TextOptions::default()
        .truncate_dim(3)
        .embedder(&path)
        .unwrap();
    assert_eq!(short.width(), 3);
    assert_close(&short.embed(&texts).unwrap(), &expected["truncated"], CLOSE);
    let cut = TextOptions::default()
        .max_length(2)
        .embedder(&path)
        .unwrap();
    assert_eq!(cut.max_length(), Some(2));
    let unit = short.embed(&texts[..1]).unwrap().sqr().unwrap();
    let unit = unit.sum_all().unwrap().to_scalar::<f32>().unwrap();
    assert!(unit < 0.999, "the files normalize before {unit}");
    let options = TextOptions::default;
    for (options, words) in [
        (
            options().pooling([Pooling::Mean]),
            ["pooling", "static embedding"],
        ),
        (
            options().precision(Precision::Int8),
            ["precision", "static embedding"],
        ),
        (options().truncate_dim(0), ["truncate_dim", "above 0"]),
    ] {
        let refusal = message(options.embedder(&path));
        for word in words {
            assert!(refusal.contains(word), "{refusal}");
        }
    }
    let refusal = message(embedder.token_vectors(&["a"]));
    assert!(refusal.contains("one vector for each text"), "{refusal}");
}

#[test]
fn a_router_reads_queries_and_documents_by_their_own_modules() {
    if !is_present("tasks") {
        return;
    }
    let expected = results("static-router");
    let texts = texts(&expected);
    let embedder = TextEmbedder::open(weights("tasks/static-router")).unwrap();
    for (role, name) in [(TextRole::Query, "query"), (TextRole::Document, "document")] {
        assert_eq!(name.parse::<TextRole>().unwrap(), role);
        let found = embedder.embed_as(role, &texts).unwrap();
        assert_close(&found, &expected[name], 2e-6);
    }
    assert_close(&embedder.embed(&texts).unwrap(), &expected["unnamed"], 2e-6);
    assert!(embedder.model().is_some());
    let ranker = TextOptions::default()
        .ranker(weights("tasks/static-router"))
        .unwrap();
    let query = ranker.query(&texts[0]).unwrap();
    let scores = ranker.scores_of(&query, &texts).unwrap();
    let vectors = |name: &str, i: usize| -> Vec<f32> {
        serde_json::from_value(expected[name][i].clone()).unwrap()
    };
    for (i, score) in scores.iter().enumerate() {
        let pairs = vectors("query", 0).into_iter().zip(vectors("document", i));
        let dot: f32 = pairs.map(|(a, b)| a * b).sum();
        assert!((score - dot).abs() < 4e-6, "{score}, not {dot}");
    }
}

#[test]
fn opensearch_s_models_weigh_queries_by_a_table() {
    if !is_present("tasks") {
        return;
    }
    let expected = results("static-sparse");
    let texts = texts(&expected);
    let path = weights("tasks/static-sparse");
    let embedder = TextEmbedder::open(&path).unwrap();
    let queries = embedder.embed_as(TextRole::Query, &texts).unwrap();
    assert_close(&queries, &expected["query"], 0.0);
    let documents = embedder.embed_as(TextRole::Document, &texts).unwrap();
    assert_close(&documents, &expected["document"], 4e-6);
    for vectors in [&queries, &documents] {
        let vector: Vec<f32> = vectors.get(0).unwrap().to_vec1().unwrap();
        let weights = embedder.weighted_tokens(&vector).unwrap();
        assert!(!weights.is_empty() && weights.is_sorted_by(|a, b| a.1 >= b.1));
    }
    let short = TextOptions::default().truncate_dim(3);
    assert!(message(short.embedder(&path)).contains("truncate_dim"));
    let other = copied("tasks/static-sparse");
    let config = other
        .path()
        .join("query_0_SparseStaticEmbedding/config.json");
    merge(&config, &json!({"path": "idf.json"}));
    assert!(message(TextEmbedder::open(other.path())).contains("path"));
}

/// The values are those of `Router._resolve_route` in sentence-transformers.
#[test]
fn routes_are_found_by_mappings_names_and_defaults() {
    if !is_present("tasks") {
        return;
    }
    let text = "the boats left";
    let of = |router: Value| {
        let folder = copied("tasks/static-router");
        let path = folder.path().join("router_config.json");
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        json["parameters"] = router;
        fs::write(&path, json.to_string()).unwrap();
        TextEmbedder::open(folder.path())
    };
    let whole = of(json!({"default_route": "query"})).unwrap();
    let query = whole
        .embed_as_prompted(TextRole::Query, &[text], "")
        .unwrap();
    let document = whole
        .embed_as_prompted(TextRole::Document, &[text], "")
        .unwrap();
    let unnamed = |embedder: &TextEmbedder| embedder.embed_prompted(&[text], "").unwrap();
    let same = |a: &Tensor, b: &Tensor| crate::bits(a) == crate::bits(b);
    assert!(same(&unnamed(&whole), &query) && !same(&query, &document));
    let mapped =
        of(json!({"default_route": "query", "route_mappings": {"(None, 'text')": "document"}}));
    let mapped = mapped.unwrap();
    assert!(same(&unnamed(&mapped), &document));
    let as_query = mapped
        .embed_as_prompted(TextRole::Query, &[text], "")
        .unwrap();
    assert!(same(&as_query, &document));
    let swapped = of(
        json!({"route_mappings": {"('query', None)": "document", "('query', 'text')": "query"}}),
    );
    let as_query = swapped
        .unwrap()
        .embed_as_prompted(TextRole::Query, &[text], "")
        .unwrap();
    assert!(same(&as_query, &query));
    let none = of(json!({"allow_empty_key": false})).unwrap();
    let refusal = message(none.embed(&[text]));
    for word in ["no default route", "`TextEmbedder::embed_as`"] {
        assert!(refusal.contains(word), "{refusal}");
    }
    let wrong = message(of(json!({"default_route": "image"})));
    for word in ["router_config.json", "default_route", "image"] {
        assert!(wrong.contains(word), "{wrong}");
    }
    let unknown = message(of(json!({"default_route": "query", "unheard_of": 1})));
    assert!(unknown.contains("unheard_of"), "{unknown}");
}

#[test]
fn damaged_tables_are_refused() {
    if !is_present("tasks") {
        return;
    }
    let folder = copied("tasks/static-words");
    fs::copy(
        weights("tasks/static-bytes/tokenizer.json"),
        folder.path().join("tokenizer.json"),
    )
    .unwrap();
    let embedder = TextEmbedder::open(folder.path()).unwrap();
    let found = embedder.embed(&["Angela Merkel lives in Berlin, near the café."]);
    let refusal = message(found);
    for word in ["text 0", "no vector", "another model"] {
        assert!(refusal.contains(word), "{refusal}");
    }
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    assert!(message(TextEmbedder::open(folder.path())).contains("tokenizer.json"));
}
