//! Layers that are loaded from a script's plain file give the numbers that PyTorch or NumPy gave with them.

use candle_blocks::{
    Activation, Norm, NormConfig, NormPlacement, PlainFile,
    candle_core::{DType, Device, Module, ModuleT, Tensor, safetensors},
    checkpoint::scheme::Orientation,
};

use crate::{
    device::device, double::has_f64, numbers::bits, reference::Reference, types::computable,
};

/// `t(i, j, k)` of weights/fixtures/reference/prenorm_ffn.py.
fn formula(rows: usize, columns: usize, k: usize) -> Tensor {
    let t = |i: usize, j: usize| ((131 * i + 71 * j + 7 * i * j + 17 * k) % 257) as f32 - 128.0;
    let values: Vec<f32> = (0..rows)
        .flat_map(|i| (0..columns).map(move |j| t(i, j)))
        .collect();
    Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
}

fn state_dict(d_ff: usize, norm: &str) -> tempfile::TempDir {
    let (vector, d_model) = (|n, k| formula(n, 1, k).flatten_all().unwrap(), 512);
    let tensors = [
        (
            "linear1.weight".to_string(),
            (formula(d_ff, d_model, 1) / 2048.0).unwrap(),
        ),
        (
            "linear1.bias".to_string(),
            (vector(d_ff, 2) / 512.0).unwrap(),
        ),
        (
            "linear2.weight".to_string(),
            (formula(d_model, d_ff, 3) / 2048.0).unwrap(),
        ),
        (
            "linear2.bias".to_string(),
            (vector(d_model, 4) / 512.0).unwrap(),
        ),
        (
            format!("{norm}.weight"),
            ((vector(d_model, 5) / 512.0).unwrap() + 1.0).unwrap(),
        ),
        (
            format!("{norm}.bias"),
            (vector(d_model, 6) / 512.0).unwrap(),
        ),
    ];
    let folder = tempfile::tempdir().unwrap();
    let map = std::collections::HashMap::from(tensors);
    safetensors::save(&map, folder.path().join("sublayer.safetensors")).unwrap();
    folder
}

#[test]
fn prenorm_and_postnorm_sublayers_equal_pytorch() {
    let reference = Reference::open("prenorm_ffn");
    let x = (formula(20, 512, 7) / 32.0)
        .unwrap()
        .reshape((2, 10, 512))
        .unwrap();
    let x = x.to_device(&device()).unwrap();
    for (placement, name, d_ff, norm) in [
        (NormPlacement::Pre, "pre", 2048, "norm"),
        (NormPlacement::Post, "post", 2048, "layer_norm"),
        (NormPlacement::Pre, "pre", 100, "layer_norm"),
    ] {
        let folder = state_dict(d_ff, norm);
        let file = PlainFile::open(folder.path().join("sublayer.safetensors")).unwrap();
        let sublayer = file
            .sublayer(Activation::Relu, placement, 1e-5, DType::F32, &device())
            .unwrap();
        let y = sublayer.forward_t(&x, false).unwrap();
        assert_eq!(y.dims(), [2, 10, 512]);
        reference.check(&format!("{name}.d_ff{d_ff}"), &y);
    }
}

fn numpy_file(reference: &Reference, case: &str, n_layers: usize) -> tempfile::TempDir {
    let mut map = std::collections::HashMap::new();
    for n in 1..=n_layers {
        for part in ["W", "b"] {
            map.insert(
                format!("{part}{n}"),
                reference.get(&format!("{case}.{part}{n}")),
            );
        }
    }
    let folder = tempfile::tempdir().unwrap();
    safetensors::save(&map, folder.path().join("mlp.safetensors")).unwrap();
    folder
}

#[test]
fn numpy_mlp_with_one_or_two_hidden_layers_equals_numpy() {
    let reference = Reference::open("numpy_mlp");
    for (case, n_layers) in [("two", 2), ("three", 3)] {
        for dtype in computable([DType::F32, DType::F64], "NumPy's MLP in f64") {
            let name = dtype.as_str();
            let case = format!("{case}.{name}");
            let folder = numpy_file(&reference, &case, n_layers);
            let file = PlainFile::open(folder.path().join("mlp.safetensors")).unwrap();
            assert_eq!(file.orientation().unwrap(), Orientation::InOut);
            let mlp = file.mlp(Activation::Relu, dtype, &device()).unwrap();
            let y = reference.get(&format!("{case}.y"));
            let out = mlp.forward(&y).unwrap();
            reference.check(&format!("{case}.out"), &out);
            // Parameters are shared over positions: each row by itself gives the same. A GPU's matrix
            // products may differ in the last bit with the number of rows.
            let rows = if device().is_cpu() { 0..3 } else { 0..0 };
            for row in rows {
                let alone = mlp.forward(&y.get(row).unwrap()).unwrap();
                assert_eq!(
                    bits(&alone),
                    bits(&out.get(row).unwrap()),
                    "{case} row {row}"
                );
            }
        }
    }
}

#[test]
fn a_square_mlp_asks_for_its_layout_and_gives_both() {
    if !has_f64("a square MLP in f64") {
        return;
    }
    let reference = Reference::open("numpy_mlp");
    let folder = numpy_file(&reference, "square.f64", 2);
    let path = folder.path().join("mlp.safetensors");
    let error = PlainFile::open(&path)
        .unwrap()
        .orientation()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("mlp.safetensors") && error.contains("W1"),
        "{error}"
    );
    assert!(error.contains("Orientation::InOut"), "{error}");
    for (orientation, name) in [
        (Orientation::InOut, "in_out"),
        (Orientation::OutIn, "out_in"),
    ] {
        let file = PlainFile::open(&path)
            .unwrap()
            .with_orientation(orientation);
        let layer = file
            .feed_forward(Activation::Relu, DType::F64, &device())
            .unwrap();
        let out = layer.forward(&reference.get("square.f64.y")).unwrap();
        reference.check(&format!("square.f64.{name}"), &out);
    }
}

#[test]
fn layer_norm_by_scale_and_shift_gives_the_asked_digits() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("norm.safetensors");
    let map = std::collections::HashMap::from([
        (
            "scale".to_string(),
            Tensor::ones(3, DType::F32, &Device::Cpu).unwrap(),
        ),
        (
            "shift".to_string(),
            Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap(),
        ),
        ("W1".to_string(), formula(5, 3, 1)),
        (
            "b1".to_string(),
            Tensor::zeros(5, DType::F32, &Device::Cpu).unwrap(),
        ),
    ]);
    safetensors::save(&map, &path).unwrap();
    let norm: Norm = PlainFile::open(&path)
        .unwrap()
        .layer_norm(1e-5, DType::F32, &device())
        .unwrap();
    assert_eq!(*norm.config(), NormConfig::layer_norm(3, 1e-5));
    let rows: [([f32; 3], [f32; 3]); 4] = [
        ([0.0213, -0.9436, -1.0795], [1.4051, -0.5639, -0.8412]),
        ([-0.0361, 1.1067, -0.6574], [-0.2380, 1.3263, -1.0883]),
        ([1.0809, 0.1795, -0.6091], [1.2510, -0.0544, -1.1966]),
        ([-1.0005, -1.0290, 1.0055], [-0.6921, -0.7220, 1.4141]),
    ];
    for (x, expected) in rows {
        let y = norm.forward(&Tensor::new(&x, &device()).unwrap()).unwrap();
        for (y, e) in y.to_vec1::<f32>().unwrap().into_iter().zip(expected) {
            assert!(
                (y - e).abs() < 5e-4,
                "{y} for {e}: inputs of 4 digits allow 3"
            );
        }
    }
}
