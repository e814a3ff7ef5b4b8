//! `examples/image_classification.rs` gives the labels that transformers gives.

use std::fs;

use candle_blocks::verify::{Expected, compare};

use crate::{
    image_classification::ranked,
    images::images,
    message::message,
    said::assert_says,
    weights::{is_present, weights},
};

#[test]
fn the_labels_of_an_image_are_those_of_transformers() {
    if !is_present("heads/deit-image_classification") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |local: &str| folder.path().join(local).to_str().unwrap().to_string();
    for name in ["config.json", "model.safetensors"] {
        let from = weights("heads/deit-image_classification").join(name);
        fs::copy(from, path(name)).unwrap();
    }
    let (tensors, said) = images();
    fs::write(path("preprocessor_config.json"), &said["labelled"]).unwrap();
    let rgb = tensors["labelled.bytes"].flatten_all().unwrap();
    let ppm = [&b"P6\n6 6\n255\n"[..], &rgb.to_vec1::<u8>().unwrap()].concat();
    fs::write(path("image.ppm"), &ppm).unwrap();

    let mut found = ranked(&path(""), &path("image.ppm")).unwrap();
    assert!(found.is_sorted_by(|a, b| a.0 > b.0), "{found:?}");
    found.sort_by(|a, b| a.1.cmp(&b.1)); // the labels are called a, b and c
    let (logits, labels): (Vec<f32>, Vec<String>) = found.into_iter().unzip();
    assert_eq!(labels, ["a", "b", "c"]);
    let get = |name: &str| tensors[name].squeeze(0).unwrap();
    let exact = get("labelled.logits.f64");
    let expected = Expected::new(get("labelled.logits"), Some(exact)).unwrap();
    let ours = candle_blocks::candle_core::Tensor::new(logits, rgb.device()).unwrap();
    let comparison = compare("logits", &ours, &expected, None);
    assert!(comparison.passed(), "{comparison:?}");

    fs::write(path("image.ppm"), &ppm[1..]).unwrap();
    let refused = message(ranked(&path(""), &path("image.ppm")));
    assert_says(refused, &["image.ppm", "not a binary PPM"]);
}
