//! Images with any size.

use std::collections::HashMap;

use candle_blocks::candle_core::{DType, Device, Module, Tensor};
use candle_blocks::candle_nn::{self, Conv2dConfig, VarBuilder};
use candle_blocks::checkpoint::scheme::Family;
use candle_blocks::config::PatchEmbeddingsConfig;
use candle_blocks::layers::PatchEmbeddings;
use candle_blocks::verify::{Expected, compare};
use candle_blocks::{
    Checkpoint, CheckpointOptions, ForwardContext, Weights, model::ModelInput, train::Fresh,
};

use crate::cpu_only::cpu_only;
use crate::device::device;
use crate::weights::{is_present, weights};
use crate::{message::message, said::assert_says};

fn images(shape: &[usize]) -> Tensor {
    Tensor::randn(0f32, 1.0, shape, &device()).unwrap()
}

#[test]
fn an_image_of_a_size_that_no_patch_divides_is_refused_with_the_cure() {
    if !is_present("families/vit") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("families/vit")).unwrap();
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .model()
        .unwrap();
    let said = |shape: &[usize]| message(model.forward(&ModelInput::pixels(&images(shape))));
    let odd = said(&[1, 3, 7, 8]);
    assert!(odd.contains("images of 7 by 8"), "{odd}");
    assert!(odd.contains("patch size 2 by 2"), "{odd}");
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
    let tokens = Tensor::new(&[[1u32]], &device()).unwrap();
    let tokens = message(model.forward(&ModelInput::tokens(&tokens)));
    assert!(tokens.contains("the model reads images"), "{tokens}");
}

/// Like SigLIP's 384 pixels, of which patches with 14 leave 6.
#[test]
fn pixels_that_fill_no_patch_are_left_out_as_by_a_convolution() {
    let mut config = PatchEmbeddingsConfig::new(8, 3, 5);
    config.class_token = false;
    let tensors: HashMap<String, Tensor> = [
        ("patch.weight", &[5, 3, 3, 3][..]),
        ("patch.bias", &[5]),
        ("position.weight", &[4, 5]),
    ]
    .map(|(name, shape)| (name.to_string(), images(shape)))
    .into();
    let vb = VarBuilder::from_tensors(tensors.clone(), DType::F32, &device());
    let pixels = images(&[2, 3, 8, 8]);
    let ours = PatchEmbeddings::new(&config, vb).unwrap();
    let ours = ours.forward_t(&pixels, false).unwrap();

    let stride = Conv2dConfig {
        stride: 3,
        ..Conv2dConfig::default()
    };
    // Computed on the CPU.
    let on_cpu = |tensor: &Tensor| tensor.to_device(&Device::Cpu).unwrap();
    let [weight, bias, table] = ["patch.weight", "patch.bias", "position.weight"];
    let [weight, bias, table] = [weight, bias, table].map(|name| on_cpu(&tensors[name]));
    let convolution = candle_nn::Conv2d::new(weight, Some(bias), stride);
    let patches = convolution.forward(&on_cpu(&pixels)).unwrap(); // [batch, d, down, across]
    let patches = patches.flatten_from(2).unwrap().transpose(1, 2).unwrap();
    let expected = patches.broadcast_add(&table).unwrap();
    let ours = on_cpu(&ours);
    let difference = (ours - expected).unwrap().abs().unwrap().max_all().unwrap();
    assert!(difference.to_scalar::<f32>().unwrap() < 1e-5);
}

#[test]
fn an_image_that_windows_do_not_fill_is_refused_with_the_cure() {
    if !is_present("families/qwen2_vl_vision") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("families/qwen2_vl_vision")).unwrap();
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .model()
        .unwrap();
    let output = model.forward(&ModelInput::pixels(&images(&[2, 2, 4, 12])));
    let output = output.unwrap();
    assert_eq!(output.last_hidden_state.dims(), [2, 12, 8]);
    // A vector of each window of 2 x 2 patches.
    assert_eq!(output.pooler_output.unwrap().dims(), [2, 3, 5]);
    let said = message(model.forward(&ModelInput::pixels(&images(&[1, 2, 4, 6]))));
    assert_says(
        said,
        &["images of 4 by 6", "2 x 2 patches of 2 by 2", "pad"],
    );
}

#[test]
fn the_tower_inside_a_file_of_qwen2_vl_opens_by_its_table() {
    if !is_present("families/qwen2_vl") {
        return;
    }
    let table = Family::known("qwen2_vl_vision", None).unwrap();
    let options = CheckpointOptions::default().family(table.section("vision_config"));
    let checkpoint = options.open(weights("families/qwen2_vl")).unwrap();
    let report = checkpoint.report();
    assert_eq!((report.missing, report.unused), (vec![], vec![]));
    let model = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .model()
        .unwrap();
    let output = model.forward(&ModelInput::pixels(&images(&[1, 3, 4, 6])));
    // Windows of a single patch, as wide as the words.
    let rows = output.unwrap().pooler_output.unwrap();
    assert_eq!(rows.dims(), [1, 6, 8]);
}

#[test]
fn a_new_tower_of_windows_has_the_layer_that_makes_their_vectors() {
    cpu_only("config.json is read");
    if !is_present("families/qwen2_vl_vision") {
        return;
    }
    let folder = weights("families/qwen2_vl_vision");
    let architecture = CheckpointOptions::default().architecture(&folder).unwrap();
    let checkpoint = Checkpoint::open(folder).unwrap();
    let new = architecture.model_config().unwrap();
    assert_eq!(new, checkpoint.model_config().unwrap());
    assert!(new.pooler.is_some());
}

#[test]
fn a_table_of_positions_that_is_no_square_is_refused() {
    cpu_only("config.json is read");
    if !is_present("families/siglip2_vision_model") {
        return;
    }
    let config = std::fs::read(weights("families/siglip2_vision_model/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config["num_patches"] = 8.into();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let architecture = CheckpointOptions::default().architecture(path).unwrap();
    let said = message(architecture.model_config());
    assert_says(said, &["num_patches", "is 8", "square"]);
}

#[test]
fn hidden_states_of_other_patches_than_given_are_refused_with_the_cure() {
    if !is_present("families/dinov3_vit") {
        return;
    }
    let checkpoint = Checkpoint::open(weights("families/dinov3_vit")).unwrap();
    let stack = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    let x = images(&[1, 3 + 2 * 4, 8]); // a class token and two registers
    let context = ForwardContext::evaluation();
    assert_says(
        message(stack.forward_with(&x, &context)),
        &["11 positions", "expected 12", "3 x 3", "with_patches"],
    );
    let turned = |grid| {
        let context = context.clone().with_patches(grid);
        let y = stack.forward_with(&x, &context).unwrap();
        y.flatten_all().unwrap().to_vec1::<f32>().unwrap()
    };
    assert_ne!(turned([2, 4]), turned([4, 2]));
}

#[test]
fn coordinates_that_transformers_draws_in_training_are_refused_there_alone() {
    if !is_present("families/dinov3_vit") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let from = weights("families/dinov3_vit");
    let name = "model.safetensors";
    std::fs::copy(from.join(name), folder.path().join(name)).unwrap();
    let config = std::fs::read(from.join("config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config.as_object_mut().unwrap().remove("pos_embed_rescale"); // 2 by default
    let config = serde_json::to_vec(&config).unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    let model = Checkpoint::open(folder.path()).unwrap();
    let model = model
        .load(Weights::Dense(DType::F32, &device()))
        .model()
        .unwrap();
    let input = ModelInput::pixels(&images(&[1, 3, 6, 6]));
    model.forward(&input).unwrap();
    let said = message(model.forward(&input.with_train(true)));
    assert_says(said, &["at random in training", "pos_embed_rescale"]);
}

#[test]
fn the_positions_of_a_new_vit_mae_are_those_of_transformers() {
    if !is_present("families/vit_mae") {
        return;
    }
    let architecture = CheckpointOptions::default().architecture(weights("families/vit_mae"));
    let initialization = architecture.unwrap().initialization;
    let fresh = Fresh::new(initialization, 1, DType::F32, &device());
    let vb = fresh.var_builder().pp("embeddings.position");
    let ours = vb.get((10, 12), "weight").unwrap();
    let (tensors, _) = crate::images::images();
    let expected = Expected::new(tensors["sinusoids"].clone(), None).unwrap();
    let comparison = compare("positions", &ours, &expected, None);
    assert!(comparison.passed(), "{comparison:#?}");
}
