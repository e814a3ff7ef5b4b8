//! Labels and vectors are those that transformers' pipelines give.

use std::fs;

use candle_blocks::candle_core::{DType, Device};
use candle_blocks::pictures::{
    Image, ImageClassifier, ImageEmbedder, ImageOptions, ZeroShotImageClassifier,
};
use candle_blocks::text::{FunctionToApply, TextEmbedder};
use serde::Deserialize;
use serde_json::json;

use crate::pictures;
use crate::weights::is_present;

#[derive(Deserialize)]
struct Labeled {
    score: f32,
    label: String,
}

#[derive(Deserialize)]
struct Results {
    files: Vec<String>,
    labels: Option<Vec<Vec<Labeled>>>,
    softmax: Option<Vec<Vec<Labeled>>>,
    candidates: Option<Vec<String>>,
    ranked: Option<Vec<(String, Vec<Vec<Labeled>>)>>,
    vectors: Vec<Vec<f32>>,
    texts: Option<Vec<String>>,
    /// The vectors of `texts` by sentence-transformers.
    of_texts: Option<Vec<Vec<f32>>>,
}

fn results(model: &str) -> (Results, Vec<Image>) {
    let results: Results = crate::json(&format!("{model}/results.json"));
    let images = results
        .files
        .iter()
        .map(|name| Image::open(pictures("files").join(name)).unwrap());
    let images = images.collect();
    (results, images)
}

/// The largest difference between scores, and between elements relative to the largest one: PyTorch adds f32 values in another order.
const TOLERANCE: f32 = 2e-6;

fn assert_ranked(labels: &[String], scores: &[f32], expected: &[Labeled], file: &str) {
    assert_eq!(labels.len(), expected.len(), "{file}");
    for ((label, score), expected) in labels.iter().zip(scores).zip(expected) {
        let difference = (score - expected.score).abs();
        assert!(
            difference <= TOLERANCE,
            "{file}: {score} {}",
            expected.score
        );
        assert_eq!(label, &expected.label, "{file}");
    }
}

#[test]
fn labels_are_those_of_the_image_classification_pipeline() {
    if !is_present("pictures") {
        return;
    }
    for model in ["vit", "dinov2"] {
        let (results, images) = results(model);
        let by_softmax = ImageOptions::default().function_to_apply(FunctionToApply::Softmax);
        let cases = [
            (ImageClassifier::open(pictures(model)), results.labels),
            (by_softmax.classifier(pictures(model)), results.softmax),
        ];
        for (classifier, expected) in cases {
            let classifier = classifier.unwrap();
            let ours = classifier.classify(&images).unwrap();
            assert_eq!(ours.len(), 4);
            for ((ours, expected), file) in ours.iter().zip(&expected.unwrap()).zip(&results.files)
            {
                let best: Vec<usize> = ours.ranked().into_iter().take(expected.len()).collect();
                let labels: Vec<String> = best
                    .iter()
                    .map(|&i| classifier.labels()[i].clone())
                    .collect();
                let scores: Vec<f32> = best.iter().map(|&i| ours.scores[i]).collect();
                assert_ranked(&labels, &scores, expected, file);
            }
        }
    }
}

#[test]
fn labels_of_the_caller_are_ranked_as_by_the_zero_shot_pipeline() {
    if !is_present("pictures") {
        return;
    }
    for model in ["clip", "siglip", "siglip2"] {
        let (results, images) = results(model);
        for (template, expected) in results.ranked.unwrap() {
            let classifier = ZeroShotImageClassifier::open(pictures(model)).unwrap();
            let classifier = classifier.with_template(template.parse().unwrap());
            let candidates = results.candidates.as_ref().unwrap();
            let ours = classifier.classify(&images, candidates).unwrap();
            assert_eq!(ours.len(), 4);
            for ((ours, expected), file) in ours.iter().zip(&expected).zip(&results.files) {
                assert_ranked(&ours.labels, &ours.scores, expected, file);
            }
        }
    }
}

#[test]
fn vectors_are_those_of_transformers() {
    if !is_present("pictures") {
        return;
    }
    for model in [
        "vit",
        "vit-pooled",
        "dinov2-bare",
        "clip",
        "siglip",
        "siglip2",
    ] {
        let (results, images) = results(model);
        let embedder = ImageEmbedder::open(pictures(model)).unwrap();
        let ours = embedder.embed(&images).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(ours.len(), 4);
        assert_vectors(&ours, &results.vectors, model);
    }
}

#[track_caller]
fn assert_vectors(ours: &[Vec<f32>], expected: &[Vec<f32>], of: &str) {
    assert_eq!(ours.len(), expected.len(), "{of}");
    for (i, (ours, expected)) in ours.iter().zip(expected).enumerate() {
        assert_eq!(ours.len(), expected.len(), "{of}, {i}");
        let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
        for (a, b) in ours.iter().zip(expected) {
            let most = TOLERANCE * largest;
            assert!((a - b).abs() <= most, "{of}, {i}: {a} {b}");
        }
    }
}

/// Copies CLIP's files to a folder, beside the files of sentence-transformers that these texts are.
fn sentence_clip(to: &str, class: &str, settings: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join(to);
    fs::create_dir_all(&model).unwrap();
    for name in [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        fs::copy(pictures("clip").join(name), model.join(name)).unwrap();
    }
    let modules = json!([{"idx": 0, "name": "0", "path": to, "type": class}]);
    fs::write(folder.path().join("modules.json"), modules.to_string()).unwrap();
    if !settings.is_empty() {
        fs::write(model.join("sentence_bert_config.json"), settings).unwrap();
    }
    folder
}

#[test]
fn a_clip_of_sentence_transformers_gives_its_vectors_of_texts_and_images() {
    if !is_present("pictures") {
        return;
    }
    let (results, images) = results("clip");
    let (texts, of_texts) = (results.texts.unwrap(), results.of_texts.unwrap());
    let both = r#"{"transformer_task": "feature-extraction", "modality_config": {"text": {"method": "get_text_features",
        "method_output_name": "pooler_output"}, "image": {"method": "get_image_features", "method_output_name": "pooler_output"}},
        "module_output_name": "sentence_embedding"}"#;
    for (to, class, settings) in [
        ("0_CLIPModel", "sentence_transformers.models.CLIPModel", ""),
        (
            "",
            "sentence_transformers.base.modules.transformer.Transformer",
            both,
        ),
        (
            "",
            "sentence_transformers.sentence_transformer.modules.clip_model.CLIPModel",
            both,
        ),
    ] {
        let folder = sentence_clip(to, class, settings);
        let embedder = TextEmbedder::open(folder.path()).unwrap();
        let ours = embedder.embed(&texts).unwrap().to_vec2::<f32>().unwrap();
        assert_vectors(&ours, &of_texts, class);
        let ours = ImageEmbedder::open(folder.path()).unwrap();
        let ours = ours.embed(&images).unwrap().to_vec2::<f32>().unwrap();
        assert_vectors(&ours, &results.vectors, class);
        let labels = ["a cat", "a boat"];
        let of_folder = ZeroShotImageClassifier::open(folder.path()).unwrap();
        let of_files = ZeroShotImageClassifier::open(pictures("clip")).unwrap();
        let [ours, expected] =
            [of_folder, of_files].map(|of| of.classify(&images[..1], &labels).unwrap());
        assert_eq!(ours[0].scores, expected[0].scores);
    }
}

#[test]
fn a_text_model_without_a_projection_is_refused_as_a_clip() {
    if !is_present("pictures") || !is_present("text") {
        return;
    }
    let folder = sentence_clip("", "sentence_transformers.models.CLIPModel", "");
    for name in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        let from = crate::weights::weights("text/labels").join(name);
        fs::copy(from, folder.path().join(name)).unwrap();
    }
    let error = TextEmbedder::open(folder.path()).unwrap_err();
    crate::said::assert_says(
        &error,
        &["get_text_features", "no text tower with a projection"],
    );
}

#[test]
fn models_in_other_types_read_images_too() {
    if !is_present("pictures") {
        return;
    }
    let image = [crate::pattern::pattern(40, 30, 1)];
    let device = Device::Cpu;
    let exact = ImageEmbedder::open(pictures("clip")).unwrap();
    let exact = exact.embed(&image).unwrap().to_vec2::<f32>().unwrap();
    for (dtype, tolerance) in [(DType::F64, 1e-5), (DType::BF16, 0.2), (DType::F16, 0.02)] {
        let options = || ImageOptions::default().device(dtype, &device);
        let embedder = options().embedder(pictures("clip")).unwrap();
        let ours = embedder.embed(&image).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(ours.len(), 1);
        for (a, b) in ours[0].iter().zip(&exact[0]) {
            assert!((a - b).abs() < tolerance, "{dtype:?}: {a} {b}");
        }
        let classifier = options().zero_shot_classifier(pictures("clip")).unwrap();
        let ranked = classifier.classify(&image, &["cat", "dog"]).unwrap();
        let sum: f32 = ranked[0].scores.iter().sum();
        assert!((sum - 1.0).abs() < 1e-5, "{dtype:?}: {sum}");
    }
}
