//! Images of every size.

use std::collections::HashMap;

use candle_blocks::candle_core::{DType, Device, Module, Tensor};
use candle_blocks::candle_nn::{self, Conv2dConfig, VarBuilder};
use candle_blocks::config::PatchEmbeddingsConfig;
use candle_blocks::layers::PatchEmbeddings;
use candle_blocks::{Checkpoint, model::ModelInput};

use crate::message::message;
use crate::weights::{is_present, weights};

fn images(shape: &[usize]) -> Tensor {
    Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()
}

#[test]
fn an_image_of_a_size_that_no_patch_divides_is_refused_with_the_cure() {
    if !is_present("families/vit") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("families/vit")).unwrap();
    let model = checkpoint.model(DType::F32, &Device::Cpu).unwrap();
    let said = |shape: &[usize]| message(model.forward(&ModelInput::pixels(&images(shape))));
    let odd = said(&[1, 3, 7, 8]);
    assert!(odd.contains("images of 7 by 8"), "{odd}");
    assert!(odd.contains("patches of 2 by 2"), "{odd}");
    assert!(odd.contains("6 by 6"), "{odd}");
    let empty = said(&[1, 3, 0, 6]);
    assert!(empty.contains("images of 0 by 6"), "{empty}");
    let gray = said(&[1, 1, 6, 6]);
    assert!(
        gray.contains("expected [batch, 3, height, width]"),
        "{gray}"
    );
    let single = said(&[3, 6, 6]);
    assert!(single.contains("[3, 6, 6]"), "{single}");
    let bytes = images(&[1, 3, 6, 6]).to_dtype(DType::U8).unwrap();
    let bytes = message(model.forward(&ModelInput::pixels(&bytes)));
    assert!(
        bytes.contains("pixel_values") && bytes.contains("U8"),
        "{bytes}"
    );
    let tokens = Tensor::new(&[[1u32]], &Device::Cpu).unwrap();
    let tokens = message(model.forward(&ModelInput::tokens(&tokens)));
    assert!(tokens.contains("the model reads images"), "{tokens}");
}

/// As SigLIP's 384 pixels, of which patches of 14 leave 6.
#[test]
fn what_fills_no_patch_of_a_trained_size_is_left_out_as_by_a_convolution() {
    let config = PatchEmbeddingsConfig {
        class_token: false,
        ..PatchEmbeddingsConfig::new(8, 3, 5)
    };
    let tensors: HashMap<String, Tensor> = [
        ("patch.weight", &[5, 3, 3, 3][..]),
        ("patch.bias", &[5]),
        ("position.weight", &[4, 5]),
    ]
    .map(|(name, shape)| (name.to_string(), images(shape)))
    .into();
    let vb = VarBuilder::from_tensors(tensors.clone(), DType::F32, &Device::Cpu);
    let pixels = images(&[2, 3, 8, 8]);
    let ours = PatchEmbeddings::new(&config, vb).unwrap();
    let ours = ours.forward_t(&pixels, false).unwrap();

    let stride = Conv2dConfig {
        stride: 3,
        ..Conv2dConfig::default()
    };
    let (weight, bias) = (
        tensors["patch.weight"].clone(),
        tensors["patch.bias"].clone(),
    );
    let convolution = candle_nn::Conv2d::new(weight, Some(bias), stride);
    let patches = convolution.forward(&pixels).unwrap(); // [batch, d, down, across]
    let patches = patches.flatten_from(2).unwrap().transpose(1, 2).unwrap();
    let expected = patches.broadcast_add(&tensors["position.weight"]).unwrap();
    let difference = (ours - expected).unwrap().abs().unwrap().max_all().unwrap();
    assert!(difference.to_scalar::<f32>().unwrap() < 1e-5);
}
