//! A plain file is trained, and saved under its own names and in its own layout.

use std::collections::HashMap;

use candle_blocks::{
    Activation, NormPlacement, PlainFile,
    candle_core::{DType, Device, Module, ModuleT, Tensor, Var, safetensors},
    checkpoint::scheme::Orientation,
    ops,
    train::{AdamW, AdamWConfig, ParameterGroup},
    verify::{Fixture, verify},
};

use crate::{cpu_only::cpu_only, device::device, numbers::bits, weights::weights};

/// `weights/own_module.py` wrote PyTorch's gradients of every parameter.
#[test]
fn gradients_of_a_plain_files_variables_are_pytorchs() {
    let folder = weights("own-module");
    let file = PlainFile::open(folder.join("feed_forward.safetensors"));
    let file = file.unwrap().trainable();
    let placement = NormPlacement::Pre;
    let layer = file.sublayer(Activation::Gelu, placement, 1e-5, DType::F32, &device());
    let fixture = Fixture::open(folder.join("fixture.safetensors")).unwrap();
    let on_device = |tensor: Option<&Tensor>| tensor.unwrap().to_device(&device()).unwrap();
    let x = Var::from_tensor(&on_device(fixture.hidden_states())).unwrap();
    let output = layer.unwrap().forward_t(x.as_tensor(), true).unwrap();
    let start = on_device(fixture.grad_output());
    let loss = (&output * start).unwrap().sum_all().unwrap();
    let gradients = loss.backward().unwrap();
    let gradient = |variable: &Tensor| gradients.get(variable).unwrap().clone();
    let mut produced = HashMap::from([("layers.0.output".to_string(), output)]);
    produced.insert("grads.hidden_states".to_string(), gradient(x.as_tensor()));
    for (name, variable) in &file.parameters() {
        produced.insert(format!("grads.{name}"), gradient(variable.as_tensor()));
    }
    assert_eq!(produced.len(), 2 + 6);
    let report = verify(&fixture, &produced);
    assert!(report.passed, "{report}");
}

fn drawn(shape: &[usize], k: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let value = |i: usize| ((37 * i + 101 * k) % 89) as f32 / 89.0 - 0.5;
    let values: Vec<f32> = (0..n).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// A file in NumPy's layout, with a row and a column as biases, a weight in half precision, and a tensor that is left out.
#[test]
fn a_trained_plain_file_is_saved_as_it_was_stored() {
    let folder = tempfile::tempdir().unwrap();
    let [path, trained] =
        ["mlp", "trained"].map(|name| folder.path().join(format!("{name}.safetensors")));
    let stored = HashMap::from([
        ("W1", drawn(&[4, 6], 1)),
        ("b1", drawn(&[1, 6], 2)),
        ("W2", drawn(&[6, 3], 3).to_dtype(DType::BF16).unwrap()),
        ("b2", drawn(&[3, 1], 4)),
        ("step", Tensor::new(7i64, &Device::Cpu).unwrap()),
    ]);
    safetensors::save(&stored, &path).unwrap();
    let open = |path| {
        PlainFile::open_renamed(path, |name| (name != "step").then(|| name.to_string())).unwrap()
    };
    let file = open(&path).trainable();
    assert_eq!(file.orientation().unwrap(), Orientation::InOut);
    let mlp = |file: &PlainFile| file.mlp(Activation::Tanh, DType::F32, &device()).unwrap();
    let model = mlp(&file);
    let names: Vec<String> = file
        .parameters()
        .iter()
        .map(|(name, _)| name.clone())
        .collect();
    assert_eq!(names, ["W1", "b1", "W2", "b2"]);
    // Loaded again, the layers have the same variables.
    mlp(&file);
    assert_eq!(file.parameters().len(), 4);

    let group = ParameterGroup::new(file.parameters(), 0.0);
    let config = AdamWConfig {
        learning_rate: 1e-2,
        ..AdamWConfig::default()
    };
    let mut optimizer = AdamW::new([group], config).unwrap();
    let x = drawn(&[5, 4], 5).to_device(&device()).unwrap();
    let target = drawn(&[5, 3], 6).to_device(&device()).unwrap();
    let mut losses = vec![];
    for _ in 0..20 {
        let loss = ops::mse(&model.forward(&x).unwrap(), &target).unwrap();
        losses.push(loss.to_scalar::<f32>().unwrap());
        let gradients = optimizer.backward(&loss).unwrap();
        optimizer.update(&gradients, 1.0).unwrap();
    }
    assert!(losses[19] < 0.8 * losses[0], "{losses:?}");
    file.save(&trained, file.parameters()).unwrap();

    // safetensors' own reader.
    let saved = safetensors::load(&trained, &Device::Cpu).unwrap();
    assert_eq!(saved.len(), stored.len());
    for (name, before) in &stored {
        let after = &saved[*name];
        assert_eq!(
            (after.dims(), after.dtype()),
            (before.dims(), before.dtype()),
            "{name}"
        );
        assert_eq!(bits(after) == bits(before), *name == "step", "{name}");
    }
    let parameters = file.parameters();
    let w1 = parameters.find("W1").unwrap().as_tensor().t().unwrap();
    assert_eq!(bits(&w1), bits(&saved["W1"]));
    let again = mlp(&open(&trained)).forward(&x).unwrap();
    let difference = (again - model.forward(&x).unwrap()).unwrap().abs().unwrap();
    let difference = difference.max_all().unwrap().to_scalar::<f32>().unwrap();
    assert!(difference < 1e-2, "W2 is rounded to bfloat16: {difference}");
    // It may replace the file that was opened.
    file.save(&path, file.parameters()).unwrap();
    assert_eq!(
        std::fs::read(&path).unwrap(),
        std::fs::read(&trained).unwrap()
    );
}

/// The norm's width tells an orientation that PyTorch's names would not.
#[test]
fn a_plain_file_is_saved_in_the_orientation_of_its_norm() {
    let folder = tempfile::tempdir().unwrap();
    let [path, saved] =
        ["mlp", "saved"].map(|name| folder.path().join(format!("{name}.safetensors")));
    let stored = HashMap::from([
        ("gate_proj.weight", drawn(&[4, 6], 1)),
        ("up_proj.weight", drawn(&[4, 6], 2)),
        ("down_proj.weight", drawn(&[6, 4], 3)),
        ("norm.weight", drawn(&[4], 4)),
        ("norm.bias", drawn(&[4], 5)),
    ]);
    safetensors::save(&stored, &path).unwrap();
    let file = PlainFile::open(&path).unwrap().trainable();
    let placement = NormPlacement::Pre;
    let layer = file.sublayer(Activation::Silu, placement, 1e-5, DType::F32, &device());
    assert_eq!(layer.unwrap().inner().up().shape(), (6, 4));
    file.save(&saved, file.parameters()).unwrap();
    let saved = safetensors::load(&saved, &Device::Cpu).unwrap();
    for (name, tensor) in &stored {
        assert_eq!(saved[*name].dims(), tensor.dims(), "{name}");
        assert_eq!(bits(&saved[*name]), bits(tensor), "{name}");
    }
}

#[test]
fn a_plain_file_refuses_to_save_other_parameters() {
    cpu_only("names of a file are checked");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mlp.safetensors");
    let stored = HashMap::from([
        ("fc1.weight", drawn(&[3, 2], 1)),
        ("fc1.bias", drawn(&[3], 2)),
    ]);
    safetensors::save(&stored, &path).unwrap();
    let file = PlainFile::open(&path).unwrap();
    let said = |path, parameters: &[(&str, Tensor)]| {
        let parameters = parameters.iter().map(|(name, tensor)| (*name, tensor));
        file.save(folder.path().join(path), parameters)
            .unwrap_err()
            .to_string()
    };
    let bias = ("fc1.bias", drawn(&[3], 3));
    for (path, parameters, words) in [
        ("a.npz", &[][..], "give a name that ends in .safetensors"),
        (
            "a.safetensors",
            &[("fc1.biases", drawn(&[3], 3))],
            "the file has no such parameter; nearest: fc1.bias",
        ),
        (
            "a.safetensors",
            &[("fc1.bias", drawn(&[2], 3))],
            "it has shape [2], expected [3]",
        ),
        (
            "a.safetensors",
            &[("fc1.weight", drawn(&[3, 3], 3))],
            "it has shape [3, 3], expected [3, 2]",
        ),
        ("a.safetensors", &[bias.clone(), bias], "given twice"),
    ] {
        let text = said(path, parameters);
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}
