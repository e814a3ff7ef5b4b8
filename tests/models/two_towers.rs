//! Texts and images that are compared.

use candle_blocks::candle_core::{D, DType, Tensor};
use candle_blocks::{CheckpointOptions, Weights, model::ModelInput};

use crate::device::device;
use crate::message::message;
use crate::same::assert_same;
use crate::weights::{is_present, weights};

fn input() -> ModelInput {
    let ids = Tensor::new(&[[4u32, 5, 9], [3, 10, 6], [1, 2, 5]], &device()).unwrap();
    ModelInput {
        pixel_values: Some(Tensor::randn(0f32, 1.0, (2, 3, 6, 6), &device()).unwrap()),
        ..ModelInput::tokens(&ids)
    }
}

fn numbers(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn three_texts_are_compared_with_two_images() {
    if !is_present("heads") {
        return;
    }
    for name in ["heads/clip-end", "heads/siglip-both"] {
        let checkpoint = CheckpointOptions::default()
            .whole()
            .open(weights(name))
            .unwrap();
        let towers = checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .two_towers()
            .unwrap();
        let output = towers.forward(&input()).unwrap();
        assert_eq!(output.logits_per_image.dims(), [2, 3], "{name}");
        let number = |of: &str| {
            let tensor = checkpoint.files().read(of).ok()?;
            numbers(&tensor).first().copied()
        };
        let scale = number("logit_scale").unwrap().exp();
        let bias = number("logit_bias").unwrap_or(0.0);
        let of_text = output.text.logits.or(output.text.pooler_output).unwrap();
        let of_image = output
            .vision
            .logits
            .or(output.vision.pooler_output)
            .unwrap();
        for image in 0..2 {
            for text in 0..3 {
                let (a, b) = (of_image.get(image).unwrap(), of_text.get(text).unwrap());
                let dot = |a: &Tensor, b: &Tensor| numbers(&(a * b).unwrap()).iter().sum::<f32>();
                let cosine = dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt();
                let ours = output
                    .logits_per_image
                    .get(image)
                    .unwrap()
                    .get(text)
                    .unwrap();
                let ours = ours.to_scalar::<f32>().unwrap();
                let expected = scale * cosine + bias;
                assert!((ours - expected).abs() < 1e-5, "{name}: {ours} {expected}");
            }
        }
        let lengths = output.image_embeds.sqr().unwrap().sum(D::Minus1).unwrap();
        assert!(
            numbers(&lengths)
                .iter()
                .all(|length| (length - 1.0).abs() < 1e-6)
        );
    }
}

#[test]
fn towers_of_two_widths_are_refused_with_both() {
    if !is_present("families/siglip") {
        return;
    }
    let checkpoint = CheckpointOptions::default().whole();
    let checkpoint = checkpoint.open(weights("families/siglip")).unwrap();
    let towers = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .two_towers()
        .unwrap();
    let said = message(towers.forward(&input()));
    assert!(said.contains("[12]") && said.contains("[16]"), "{said}");
}

/// Like files with one tower that name it.
#[test]
fn a_tower_that_config_json_names_is_opened_alone() {
    if !is_present("families/clip") {
        return;
    }
    for (section, model_type) in [
        ("text_config", "clip_text_model"),
        ("vision_config", "clip_vision_model"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config = std::fs::read(weights("families/clip/config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        let mut own = config[section].clone();
        own["model_type"] = model_type.into();
        own["projection_dim"] = config["projection_dim"].clone();
        std::fs::write(folder.path().join("config.json"), own.to_string()).unwrap();
        let file = weights("families/clip/model.safetensors");
        std::fs::copy(file, folder.path().join("model.safetensors")).unwrap();

        let one = CheckpointOptions::default().whole().open(folder.path());
        let one = one.unwrap_or_else(|error| panic!("{model_type}: {error}"));
        assert!(one.second_stack().unwrap().is_none(), "{model_type}");
        let input = input();
        let model = one
            .load(Weights::Dense(DType::F32, &device()))
            .model()
            .unwrap();
        let ours = model.forward(&input).unwrap().logits.unwrap();
        let two = CheckpointOptions::default().whole();
        let two = two.open(weights("families/clip")).unwrap();
        let two = two
            .load(Weights::Dense(DType::F32, &device()))
            .two_towers()
            .unwrap();
        let tower = match section {
            "text_config" => two.text(),
            _ => two.vision(),
        };
        let expected = tower.forward(&input).unwrap().logits.unwrap();
        assert_same(&ours, &expected, model_type);
    }
}
