//! Small models' results, by the ratio rule.

use candle_blocks::Precision;
use candle_blocks::candle_core::{self, DType, Device, Tensor};
use candle_blocks::text::{Pooling, Scores, TextClassifier, TextEmbedder, TextOptions};

use crate::{
    folder::changed,
    message::message,
    reference::Reference,
    texts,
    torch_from_safetensors::convert,
    weights::{is_present, weights},
};

fn results(name: &str) -> Reference {
    Reference::open(&format!("../text/{name}/results"))
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    for name in ["joined", "last", "t5"] {
        let all = ["embeddings", "embeddings.f64", "prompted", "prompted.f64"];
        assert_eq!(results(name).names(), all);
        let folder = weights(&format!("text/{name}"));
        let plain = TextOptions::default().device(DType::F32, &Device::Cpu);
        for embedder in [
            TextEmbedder::open(&folder).unwrap(),
            plain.embedder(&folder).unwrap(),
        ] {
            let vectors = embedder.embed(&texts(name)).unwrap();
            assert_eq!(vectors.dims()[1], embedder.width());
            results(name).check("embeddings", &vectors);
            let prompt = embedder.prompt("query").unwrap();
            let prompted = embedder.embed_prompted(&texts(name), prompt).unwrap();
            results(name).check("prompted", &prompted);
        }
    }
}

#[test]
fn modules_in_files_of_pytorch_give_the_same_vectors() {
    let folder = changed("joined", |folder| {
        for module in ["", "2_Dense"] {
            let [from, to] = ["model.safetensors", "pytorch_model.bin"]
                .map(|name| folder.join(module).join(name));
            convert(&from, &to);
        }
    });
    let embedder = TextEmbedder::open(folder.path()).unwrap();
    let vectors = embedder.embed(&texts("joined")).unwrap();
    results("joined").check("embeddings", &vectors);
}

/// The classifier of BART and T5 reads a state of the decoder, as in a model for zero-shot classification.
#[test]
fn a_classifier_on_a_decoder_gives_the_logits_of_pytorch() {
    let texts = [("bart", "8 7 7 10 4 7 9 8 2"), ("t5", "4 3 10 7 4 4 9 6 2")];
    for (name, text) in texts {
        let source = weights(&format!("heads/{name}-sequence_classification"));
        if !is_present("heads") {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(source.join(file), folder.path().join(file)).unwrap();
        }
        // Each word is the number of its token.
        let words: serde_json::Map<_, _> = (0..11).map(|id| (id.to_string(), id.into())).collect();
        let tokenizer = serde_json::json!({
            "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null, "decoder": null,
            "pre_tokenizer": {"type": "WhitespaceSplit"},
            "model": {"type": "WordLevel", "vocab": words, "unk_token": "0"},
        });
        std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let fixture = source.join("whole.safetensors");
        let fixture = candle_core::safetensors::load(fixture, &Device::Cpu).unwrap();
        let ids = fixture["input_ids"]
            .get(0)
            .unwrap()
            .to_vec1::<i64>()
            .unwrap();
        let ids: Vec<String> = ids.iter().map(i64::to_string).collect();
        assert_eq!(ids.join(" "), text);
        let expected = fixture["logits.f64"]
            .get(0)
            .unwrap()
            .to_vec1::<f64>()
            .unwrap();
        let plain = TextOptions::default().device(DType::F32, &Device::Cpu);
        for classifier in [
            TextClassifier::open(folder.path()).unwrap(),
            plain.classifier(folder.path()).unwrap(),
        ] {
            assert_eq!(classifier.labels(), ["a", "b", "c"]);
            let found = &classifier.classify(&[text]).unwrap()[0];
            for (found, expected) in found.logits.iter().zip(&expected) {
                let error = (f64::from(*found) - expected).abs();
                assert!(error < 2e-6, "{name}: {found}, expected {expected}");
            }
            let whole: f32 = found.scores.iter().sum();
            assert!((whole - 1.0).abs() < 1e-6, "{:?}", found.scores);
        }
    }
}

#[test]
fn texts_are_shortened_as_the_files_say() {
    let embedder = TextEmbedder::open(weights("text/joined")).unwrap();
    assert_eq!(embedder.max_length(), Some(14)); // the tokenizer's limit; the model has 20 positions
    let embedder = TextEmbedder::open(weights("text/last")).unwrap();
    assert_eq!(embedder.max_length(), Some(12)); // the model's limit; the tokenizer has 1000
    let options = TextOptions::default().max_length(300);
    let embedder = options.embedder(weights("text/joined")).unwrap();
    assert_eq!(embedder.max_length(), Some(20)); // more positions there are not
    let said = embedder.notes().join("\n");
    assert!(
        said.contains("max_length is 300") && said.contains("20 positions"),
        "{said}"
    );
}

#[test]
fn a_plain_encoder_needs_a_pooling() {
    let folder = weights("text/labels"); // without modules.json
    let refusal = message(TextEmbedder::open(&folder));
    assert!(
        refusal.contains("modules.json") && refusal.contains("TextOptions::pooling"),
        "{refusal}"
    );
    let options = |normalize| {
        TextOptions::default()
            .pooling([Pooling::Cls])
            .normalize(normalize)
    };
    let plain = options(false)
        .embedder(&folder)
        .unwrap()
        .embed(&["boats"])
        .unwrap();
    let unit = options(true)
        .embedder(&folder)
        .unwrap()
        .embed(&["boats"])
        .unwrap();
    let length = |x: &Tensor| {
        x.sqr()
            .unwrap()
            .sum_all()
            .unwrap()
            .sqrt()
            .unwrap()
            .to_scalar::<f32>()
            .unwrap()
    };
    assert!((length(&unit) - 1.0).abs() < 1e-6);
    let scaled = (unit * f64::from(length(&plain))).unwrap();
    let difference = (scaled - plain).unwrap().abs().unwrap().max_all().unwrap();
    assert!(difference.to_scalar::<f32>().unwrap() < 1e-5);
}

#[test]
fn logits_are_those_of_transformers_and_scores_what_they_mean() {
    for (name, labels) in [
        ("ranker", &["LABEL_0"][..]),
        ("labels", &["calm", "rough", "ebb"]),
    ] {
        let classifier = TextClassifier::open(weights(&format!("text/{name}"))).unwrap();
        assert_eq!(classifier.labels(), labels);
        let texts = texts(name);
        let pairs: Vec<_> = texts.iter().zip(texts.iter().rev()).collect();
        check(name, "logits", &classifier.classify(&texts).unwrap());
        check(name, "pairs", &classifier.classify_pairs(&pairs).unwrap());
    }
}

#[track_caller]
fn check(name: &str, of: &str, found: &[Scores]) {
    let table = |rows: Vec<Vec<f32>>| Tensor::new(rows, &Device::Cpu).unwrap();
    let logits = table(found.iter().map(|scores| scores.logits.clone()).collect());
    results(name).check(of, &logits);
    let scores = table(found.iter().map(|scores| scores.scores.clone()).collect());
    let expected = results(name)
        .get(&format!("{of}.scores"))
        .to_dtype(DType::F32)
        .unwrap();
    let difference = (&scores - &expected)
        .unwrap()
        .abs()
        .unwrap()
        .max_all()
        .unwrap();
    assert!(difference.to_scalar::<f32>().unwrap() < 1e-5);
    let best = expected.argmax(1).unwrap().to_vec1::<u32>().unwrap();
    let found: Vec<u32> = found.iter().map(|scores| scores.best() as u32).collect();
    assert_eq!(found, best);
}

#[test]
fn coarser_precisions_point_the_same_way() {
    let folder = weights("text/joined");
    let exact = TextEmbedder::open(&folder)
        .unwrap()
        .embed(&texts("joined"))
        .unwrap();
    for precision in [Precision::Bf16, Precision::Int8] {
        let embedder = TextOptions::default()
            .precision(precision)
            .embedder(&folder)
            .unwrap();
        let vectors = embedder.embed(&texts("joined")).unwrap();
        let cosines = (vectors * &exact)
            .unwrap()
            .sum(1)
            .unwrap()
            .to_vec1::<f32>()
            .unwrap();
        assert!(
            cosines.iter().all(|&cosine| cosine > 0.98 && cosine < 1.0),
            "{cosines:?}"
        );
    }
}
