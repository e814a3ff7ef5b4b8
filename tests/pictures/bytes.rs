//! Bytes that a caller has decoded become the values that transformers' processors compute.

use std::fs;

use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::pictures::{Backend, ImageProcessor};

use crate::images::images;
use crate::message::message;
use crate::said::assert_says;

#[test]
fn bytes_are_scaled_as_by_transformers_without_torchvision() {
    let folder = tempfile::tempdir().unwrap();
    let (tensors, said) = images();
    let cases: Vec<_> = said.keys().filter(|k| tensors.contains_key(*k)).collect();
    assert!(cases.len() >= 5, "{cases:?}");
    for case in cases {
        fs::write(folder.path().join("preprocessor_config.json"), &said[case]).unwrap();
        let processor = ImageProcessor::open(folder.path()).unwrap();
        let processor = processor.with_backend(Backend::Pil).unwrap();
        let ours = processor.pixels_of_bytes(&tensors["bytes"]).unwrap();
        assert_eq!(ours.dims(), tensors[case].dims(), "{case}");
        let bits = |tensor: &Tensor| -> Vec<u32> {
            let numbers = tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            numbers.into_iter().map(f32::to_bits).collect()
        };
        assert_eq!(bits(&ours), bits(&tensors[case]), "{case}");
        for (shape, dtype) in [
            (&[1, 3, 4, 4][..], DType::U8),
            (&[4, 4, 3], DType::U8),
            (&[1, 4, 4, 3], DType::F32),
        ] {
            let image = Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
            let refused = message(processor.pixels_of_bytes(&image));
            let expected = "expected bytes (U8) of [batch, height, width, 3]";
            assert_says(refused, &[&format!("{shape:?}"), expected]);
        }
    }
}
