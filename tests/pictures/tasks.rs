//! Labels and vectors are those that transformers' pipelines give.

use candle_blocks::candle_core::{DType, Device};
use candle_blocks::pictures::{
    Image, ImageClassifier, ImageEmbedder, ImageOptions, ZeroShotImageClassifier,
};
use candle_blocks::text::FunctionToApply;
use serde::Deserialize;

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
    for model in ["clip", "siglip"] {
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
    for model in ["vit", "vit-pooled", "dinov2-bare", "clip", "siglip"] {
        let (results, images) = results(model);
        let embedder = ImageEmbedder::open(pictures(model)).unwrap();
        let ours = embedder.embed(&images).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(ours.len(), 4);
        for ((ours, expected), file) in ours.iter().zip(&results.vectors).zip(&results.files) {
            assert_eq!(ours.len(), expected.len(), "{model}");
            let largest = expected.iter().fold(0f32, |most, x| most.max(x.abs()));
            for (a, b) in ours.iter().zip(expected) {
                let most = TOLERANCE * largest;
                assert!((a - b).abs() <= most, "{model}, {file}: {a} {b}");
            }
        }
    }
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
