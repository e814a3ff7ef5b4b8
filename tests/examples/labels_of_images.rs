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
    let bmp = bitmap(6, 6, &rgb.to_vec1::<u8>().unwrap());
    fs::write(path("image.bmp"), &bmp).unwrap();

    let mut found = ranked(&path(""), &path("image.bmp")).unwrap();
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

    fs::write(path("image.bmp"), &bmp[1..]).unwrap();
    let refused = message(ranked(&path(""), &path("image.bmp")));
    assert_says(refused, &["image.bmp", "is no image"]);
}

/// Returns an uncompressed BMP file.
fn bitmap(width: usize, height: usize, rgb: &[u8]) -> Vec<u8> {
    let row_bytes = (3 * width).next_multiple_of(4);
    let numbers = |all: &[u32]| -> Vec<u8> { all.iter().flat_map(|n| n.to_le_bytes()).collect() };
    let (n_bytes, planes_and_bits) = ((row_bytes * height) as u32, 1 | 24 << 16);
    let mut file = b"BM".to_vec();
    file.extend(numbers(&[54 + n_bytes, 0, 54]));
    file.extend(numbers(&[40, width as u32, height as u32, planes_and_bits]));
    file.extend(numbers(&[0, n_bytes, 2835, 2835, 0, 0]));
    for row in rgb.chunks_exact(3 * width).rev() {
        let start = file.len();
        file.extend(row.chunks_exact(3).flat_map(|rgb| [rgb[2], rgb[1], rgb[0]]));
        file.resize(start + row_bytes, 0);
    }
    file
}
