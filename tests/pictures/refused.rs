//! Settings, images and models that do not fit are refused with the key, the value and the cure.

use std::fs;

use candle_blocks::pictures::{
    Backend, Image, ImageClassifier, ImageEmbedder, ImageProcessor, ZeroShotImageClassifier,
};
use serde_json::json;

use crate::message::message;
use crate::pattern::pattern;
use crate::pictures;
use crate::said::assert_says;
use crate::weights::{is_present, weights};

#[test]
fn settings_that_are_not_supported_are_refused_by_key() {
    let folder = tempfile::tempdir().unwrap();
    let open = || ImageProcessor::open(folder.path());
    assert_says(message(open()), &["preprocessor_config.json"]);
    for (key, value, said) in [
        (
            "image_processor_type",
            json!("MaskFormerImageProcessor"),
            "CLIPImageProcessor",
        ),
        ("size", json!("large"), "shortest_edge"),
        ("size", json!({"longest_edge": 20}), "longest_edge"),
        ("size", json!(0), "found 0"),
        (
            "size",
            json!({"height": 99999999, "width": 8}),
            "found 99999999",
        ),
        ("crop_size", json!({"height": 5}), "width"),
        ("resample", json!(9), "0 to 5"),
        ("image_mean", json!([0.5]), "found 1 values, expected 3"),
        ("image_std", json!([0.5, 0.0, 0.5]), "above 0"),
        ("rescale_factor", json!("1/255"), "a finite number"),
        ("do_rescale", json!(1), "true or false"),
        ("do_flip_channel_order", json!(true), "not supported"),
        ("do_pad", json!(true), "pad_size"),
    ] {
        let mut settings =
            json!({"image_processor_type": "ViTImageProcessor", "do_center_crop": true});
        settings[key] = value;
        let path = folder.path().join("preprocessor_config.json");
        fs::write(path, settings.to_string()).unwrap();
        let shown = if key == "do_pad" { "pad_size" } else { key };
        assert_says(message(open()), &["preprocessor_config.json", shown, said]);
    }
}

#[test]
fn a_file_without_a_processor_has_that_of_the_models_type() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, value: serde_json::Value| {
        fs::write(folder.path().join(name), value.to_string()).unwrap();
    };
    let missing = message(ImageProcessor::open(folder.path()));
    let cure = "copy it from the model's repository";
    assert_says(missing, &["preprocessor_config.json", cure]);
    write("preprocessor_config.json", json!({}));
    assert_says(
        message(ImageProcessor::open(folder.path())),
        &["image_processor_type"],
    );
    write("config.json", json!({"model_type": "dinov2"}));
    let class =
        |folder: &std::path::Path| ImageProcessor::open(folder).unwrap().class().to_string();
    assert_eq!(class(folder.path()), "BitImageProcessor");
    write(
        "preprocessor_config.json",
        json!({"feature_extractor_type": "DeiTFeatureExtractor"}),
    );
    assert_eq!(class(folder.path()), "DeiTImageProcessor");
    write(
        "processor_config.json",
        json!({"image_processor": {"image_processor_type": "SiglipImageProcessorFast"}}),
    );
    assert_eq!(class(folder.path()), "SiglipImageProcessor");
}

#[test]
fn images_that_do_not_fit_are_refused() {
    let empty = message(Image::new(0, 4, Vec::new()));
    assert_says(empty, &["0 x 4"]);
    let short = message(Image::new(2, 2, vec![0; 11]));
    assert_says(short, &["11 bytes", "2 x 2"]);
    let folder = tempfile::tempdir().unwrap();
    let opened = |settings: serde_json::Value| {
        let path = folder.path().join("preprocessor_config.json");
        fs::write(path, settings.to_string()).unwrap();
        ImageProcessor::open(folder.path()).unwrap()
    };
    let settings =
        json!({"image_processor_type": "CLIPImageProcessor", "do_center_crop": false, "size": 300});
    let processor = opened(settings);
    let images = [pattern(8, 9, 1), pattern(4, 2000, 1), pattern(9, 8, 1)];
    let refused = message(processor.pixels(&images));
    assert_says(refused, &["image 1", "4 x 2000", "crop the image"]);
    let refused = message(processor.pixels(&[pattern(8, 9, 1), pattern(9, 8, 1)]));
    assert_says(refused, &["image 1", "337 x 300", "300 x 337"]);
    assert_says(message(processor.pixels(&[])), &["images", "at least one"]);
    let box_filter = opened(json!({"image_processor_type": "ViTImageProcessor", "resample": 4}));
    let refused = message(box_filter.pixels(&[pattern(8, 9, 1)]));
    assert_says(refused, &["resample", "Box", "pil"]);
    let with_pil = box_filter.with_backend(Backend::Pil).unwrap();
    assert_eq!(
        with_pil.pixels(&[pattern(8, 9, 1)]).unwrap().dims(),
        [1, 3, 224, 224]
    );
    let floats = opened(json!({"image_processor_type": "DINOv3ViTImageProcessor"}));
    assert_says(
        message(floats.with_backend(Backend::Pil)),
        &["backend", "torchvision alone"],
    );
}

#[test]
fn models_for_another_task_are_refused() {
    if !is_present("pictures") {
        return;
    }
    let refused = message(ImageClassifier::open(pictures("dinov2-bare")));
    assert_says(
        refused,
        &["dinov2-bare", "no head", "ForImageClassification"],
    );
    let refused = message(ImageClassifier::open(pictures("clip")));
    assert_says(refused, &["clip", "ZeroShotImageClassifier"]);
    let refused = message(ZeroShotImageClassifier::open(pictures("vit")));
    assert_says(refused, &["vit", "two towers"]);
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(weights("tiny-bert").join(name), folder.path().join(name)).unwrap();
    }
    fs::copy(
        pictures("vit/preprocessor_config.json"),
        folder.path().join("preprocessor_config.json"),
    )
    .unwrap();
    assert_says(
        message(ImageEmbedder::open(folder.path())),
        &["does not read images"],
    );
}

#[test]
fn a_label_with_too_many_tokens_is_refused_with_its_index() {
    if !is_present("pictures") {
        return;
    }
    let classifier = ZeroShotImageClassifier::open(pictures("clip")).unwrap();
    let long = "x".repeat(99);
    let refused = message(classifier.classify(&[pattern(8, 9, 1)], &["cat", &long]));
    assert_says(refused, &["64 positions", "shorten"]);
    let none: [&str; 0] = [];
    assert_says(
        message(classifier.classify(&[pattern(8, 9, 1)], &none)),
        &["labels"],
    );
}
