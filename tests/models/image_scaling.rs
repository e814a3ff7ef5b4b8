//! Image bytes become the values that transformers' processors compute.

use std::{fs, path::Path};

use candle_blocks::{
    candle_core::{DType, Tensor},
    model::ImageScaling,
};
use serde_json::{Value, json};

use crate::{
    cpu_only::cpu_only, images::images, message::message, numbers::bits, said::assert_says,
};

fn opened(folder: &Path, settings: &str) -> candle_blocks::Result<ImageScaling> {
    fs::write(folder.join("preprocessor_config.json"), settings).unwrap();
    ImageScaling::open(folder)
}

#[test]
fn images_are_scaled_as_by_transformers() {
    cpu_only("bytes of images are scaled");
    let folder = tempfile::tempdir().unwrap();
    let (tensors, said) = images();
    let cases: Vec<_> = said.keys().filter(|k| tensors.contains_key(*k)).collect();
    assert!(cases.len() >= 5, "{cases:?}");
    for case in cases {
        let scaling = opened(folder.path(), &said[case]).unwrap();
        let ours = scaling.pixels(&tensors["bytes"]).unwrap();
        assert_eq!(ours.dims(), tensors[case].dims(), "{case}");
        assert_eq!(bits(&ours), bits(&tensors[case]), "{case}");
    }
}

#[test]
fn settings_and_images_that_do_not_fit_are_refused() {
    let cpu = cpu_only("bytes of images are scaled");
    let folder = tempfile::tempdir().unwrap();
    let missing = message(ImageScaling::open(folder.path()));
    assert_says(missing, &["preprocessor_config.json"]);
    let mut settings = json!({"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]});
    let scaling = opened(folder.path(), &settings.to_string()).unwrap();
    let image = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &cpu).unwrap();
    for (shape, dtype) in [
        (&[1, 3, 4, 4][..], DType::U8),
        (&[4, 4, 3], DType::U8),
        (&[1, 4, 4, 3], DType::F32),
    ] {
        let refused = message(scaling.pixels(&image(shape, dtype)));
        let expected = "expected bytes (U8) of [batch, height, width, 3]";
        assert_says(refused, &[&format!("{shape:?}"), expected]);
    }
    let keys: [(&str, Value); 7] = [
        ("image_mean", Value::Null),
        ("image_mean", json!([0.5])),
        ("image_std", json!([0.5, 0.0, 0.5])),
        ("rescale_factor", json!("1/255")),
        ("do_rescale", json!(1)),
        ("rescale_offset", json!(true)),
        ("do_flip_channel_order", json!(true)),
    ];
    for (key, value) in keys {
        let right = std::mem::replace(&mut settings[key], value.clone());
        let refused = message(opened(folder.path(), &settings.to_string()));
        let key_said = if value == json!([0.5]) {
            "image_std"
        } else {
            key
        };
        assert_says(refused, &["preprocessor_config.json", key_said]);
        settings[key] = right;
    }
}
