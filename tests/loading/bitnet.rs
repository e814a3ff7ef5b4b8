//! BitNet's ternary weights, in the modes that `tests/loading/quantized.rs` has no file of.
//! Each expectation is transformers' formula in `WeightQuant` and `AutoBitLinear`, computed here in float64.

use std::collections::HashMap;
use std::fs;

use candle_blocks::candle_core::{DType, Device, Tensor, safetensors};
use candle_blocks::{Checkpoint, Result};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::said::assert_says;
use crate::weights::{is_present, weights};

type Tensors = HashMap<String, Tensor>;

/// A copy of a checkpoint with this `quantization_config`, and with other changes.
fn opened(
    name: &str,
    quantization: Value,
    change: impl FnOnce(&mut Value, &mut Tensors),
) -> (TempDir, Result<Checkpoint>) {
    let (folder, copy) = (weights(name), tempfile::tempdir().unwrap());
    let file = "model.safetensors";
    let mut tensors = safetensors::load(folder.join(file), &Device::Cpu).unwrap();
    let config = fs::read(folder.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    change(&mut config, &mut tensors);
    safetensors::save(&tensors, copy.path().join(file)).unwrap();
    config["quantization_config"] = quantization;
    fs::write(copy.path().join("config.json"), config.to_string()).unwrap();
    let checkpoint = Checkpoint::open(copy.path());
    (copy, checkpoint)
}

fn original(name: &str) -> Tensors {
    let path = weights(name).join("model.safetensors");
    safetensors::load(path, &Device::Cpu).unwrap()
}

fn online() -> Value {
    json!({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"})
}

fn offline() -> Value {
    json!({"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "offline"})
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    let tensor = tensor.to_dtype(DType::F64).unwrap();
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

/// Returns ternary values, and their scale.
fn ternary(weight: &Tensor) -> (Vec<f64>, f64) {
    let weight = numbers(weight);
    let mean = weight.iter().map(|w| w.abs()).sum::<f64>() / weight.len() as f64;
    let value = |w: &f64| (w / mean).round().clamp(-1.0, 1.0);
    (weight.iter().map(value).collect(), mean)
}

/// Asserts that the linear layers have `scale` times ternary values, and all other tensors their own.
#[track_caller]
fn assert_ternary(checkpoint: &Checkpoint, original: &Tensors) {
    let mut n = 0;
    for (name, tensor) in original {
        let found = numbers(&checkpoint.files().read(name).unwrap());
        if !name.ends_with("_proj.weight") {
            assert_eq!(found, numbers(tensor), "{name}");
            continue;
        }
        let (values, scale) = ternary(tensor);
        for (found, value) in found.iter().zip(values) {
            let difference = (found - value * scale).abs();
            assert!(difference < 1e-6 * scale, "{name}: {found}, {value}");
        }
        n += 1;
    }
    assert_eq!(n, 7);
    assert_eq!(checkpoint.report().unrounded, ["quant_method"]);
}

#[test]
fn weights_that_are_rounded_online_are_rounded_as_they_are_read() {
    if !is_present("families") {
        return;
    }
    let with_list = |list: Value| {
        let mut config = online();
        config["modules_to_not_convert"] = list;
        opened("families/bitnet", config, |_, _| {})
    };
    for list in [Value::Null, json!(["lm_head"])] {
        let (_copy, checkpoint) = with_list(list);
        assert_ternary(&checkpoint.unwrap(), &original("families/bitnet"));
    }
    // The output layer would be rounded too.
    let (_copy, refused) = with_list(json!([]));
    assert_says(refused.unwrap_err(), &["modules_to_not_convert"]);
}

#[test]
fn a_module_of_unknown_kind_is_not_rounded_online() {
    let (_copy, refused) = opened("tiny-gpt2", online(), |_, _| {});
    assert_says(refused.unwrap_err(), &["quantization_mode", "online"]);
}

/// BitNet without biases and with unpacked ternary values and their scales, after a further change.
fn unpacked(change: impl FnOnce(&mut Tensors)) -> (TempDir, Result<Checkpoint>) {
    opened("families/bitnet", offline(), |config, tensors| {
        config["attention_bias"] = false.into();
        tensors.retain(|name, _| !name.ends_with("_proj.bias"));
        for (name, tensor) in tensors.clone() {
            if name.ends_with("_proj.weight") {
                let (values, scale) = ternary(&tensor);
                let values = Tensor::from_vec(values, tensor.dims(), &Device::Cpu).unwrap();
                tensors.insert(name.clone(), values.to_dtype(DType::BF16).unwrap());
                let scale = Tensor::new(&[scale as f32], &Device::Cpu).unwrap();
                tensors.insert(format!("{name}_scale"), scale);
            }
        }
        change(tensors);
    })
}

#[test]
fn ternary_values_that_are_not_packed_are_multiplied_by_their_scale() {
    if !is_present("families") {
        return;
    }
    let mut original = original("families/bitnet");
    original.retain(|name, _| !name.ends_with("_proj.bias"));
    let (_copy, checkpoint) = unpacked(|_| {});
    assert_ternary(&checkpoint.unwrap(), &original);

    let name = "model.layers.0.self_attn.q_proj";
    let (_copy, refused) = unpacked(|tensors| {
        let bias = Tensor::zeros(8, DType::F32, &Device::Cpu).unwrap();
        tensors.insert(format!("{name}.bias"), bias);
    });
    assert_says(refused.unwrap_err(), &[name, "bias"]);
    let (_copy, checkpoint) = unpacked(|tensors| {
        let weight = tensors.get_mut(&format!("{name}.weight")).unwrap();
        *weight = (&*weight + 0.5).unwrap();
    });
    let read = checkpoint.unwrap().files().read(&format!("{name}.weight"));
    assert_says(read.unwrap_err(), &[name, "expected -1, 0 or 1"]);
}

#[test]
fn norms_in_front_of_linear_layers_are_refused() {
    if !is_present("quantized") {
        return;
    }
    for (key, value) in [
        ("use_rms_norm", json!(true)),
        ("linear_class", json!("other")),
    ] {
        let config = json!({"quant_method": "bitnet", key: value});
        let (_copy, refused) = opened("quantized/bitnet", config, |_, _| {});
        assert_says(refused.unwrap_err(), &[key]);
    }
}
