//! `pixel_values` have the same bits as from transformers' image processors, with torchvision and with PIL.

use std::fs;

use candle_blocks::candle_core::{Device, Tensor, safetensors};
use candle_blocks::pictures::{Backend, Image, ImageProcessor};
use serde_json::Value;

use crate::pattern::{crc, pattern};
use crate::pictures;
use crate::weights::is_present;

/// The script's images: width, height and seed.
const INPUTS: [(usize, usize, u32); 4] = [(64, 48, 1), (33, 70, 2), (20, 21, 3), (101, 40, 4)];

fn opened(settings: &str) -> ImageProcessor {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("preprocessor_config.json"), settings).unwrap();
    ImageProcessor::open(folder.path()).unwrap()
}

fn values(processor: &ImageProcessor, image: &Image) -> Tensor {
    let pixels = processor.pixels(std::slice::from_ref(image)).unwrap();
    pixels.squeeze(0).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn images_have_the_values_of_transformers_processors_in_every_bit() {
    if !is_present("pictures") {
        return;
    }
    type Row = (String, String, Value, Vec<([usize; 2], u32)>);
    let rows: Vec<Row> = crate::json("processors.json");
    assert!(rows.len() >= 30);
    let mut wrong = Vec::new();
    for (case, library, settings, expected) in rows {
        let backend: Backend = library.parse().unwrap();
        let processor = opened(&settings.to_string()).with_backend(backend).unwrap();
        assert_eq!(processor.class(), settings["image_processor_type"]);
        for ((width, height, seed), (size, expected)) in INPUTS.into_iter().zip(expected) {
            let ours = values(&processor, &pattern(width, height, seed));
            let bytes = numbers(&ours).into_iter().flat_map(f32::to_le_bytes);
            if ours.dims()[1..] != size || crc(bytes) != expected {
                wrong.push(format!(
                    "{case}, {library}, {width} x {height}: {:?}, expected {size:?}",
                    &ours.dims()[1..]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// DINOv3's processor resizes f32 values, whose sums PyTorch may order otherwise on another CPU.
#[test]
fn values_that_are_resized_as_floats_are_close_to_dinov3s() {
    if !is_present("pictures") {
        return;
    }
    let bytes = fs::read(pictures("processors.safetensors")).unwrap();
    let (_, header) = ::safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let expected = safetensors::load_buffer(&bytes, &Device::Cpu).unwrap();
    assert_eq!(expected.len(), 3);
    let (width, height, seed) = INPUTS[0];
    for (case, expected) in &expected {
        let settings = &header.metadata().as_ref().unwrap()[case];
        let ours = values(&opened(settings), &pattern(width, height, seed));
        assert_eq!(ours.dims(), expected.dims(), "{case}");
        let pairs = numbers(&ours).into_iter().zip(numbers(expected));
        let largest = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(largest <= 2e-6, "{case}: {largest}");
    }
}

/// A color that a file without an alpha channel declares as transparent is white for processors that convert to RGB.
#[test]
fn transparent_colors_are_those_of_transformers() {
    if !is_present("pictures") {
        return;
    }
    let text = fs::read_to_string(pictures("transparent/means.json")).unwrap();
    let cases: Vec<(String, String, [f64; 3])> = serde_json::from_str(&text).unwrap();
    assert_eq!(cases.len(), 6 * 9);
    for (class, file, expected) in cases {
        let processor = opened(&format!(r#"{{"image_processor_type": "{class}"}}"#));
        let image = Image::open(pictures(&format!("transparent/{file}"))).unwrap();
        let values = numbers(&values(&processor, &image));
        for (plane, expected) in values.chunks(values.len() / 3).zip(expected) {
            let mean = plane.iter().copied().map(f64::from).sum::<f64>() / plane.len() as f64;
            assert!(
                (mean - expected).abs() < 1e-6,
                "{class} {file}: {mean}, not {expected}"
            );
        }
    }
}
