//! Layers that are loaded from a script's plain file return the results that PyTorch or NumPy computed with them.

use candle_blocks::{
    Activation, Norm, NormConfig, NormPlacement, PlainFile,
    candle_core::{DType, Device, Module, ModuleT, Tensor, safetensors},
    checkpoint::scheme::Orientation,
};

use crate::{
    device::device, double::has_f64, numbers::bits, reference::Reference, types::computable,
};

/// Returns `t(i, j, k)` as in weights/fixtures/reference/prenorm_ffn.py.
fn formula(rows: usize, columns: usize, k: usize) -> Tensor {
    let t = |i: usize, j: usize| ((131 * i + 71 * j + 7 * i * j + 17 * k) % 257) as f32 - 128.0;
    let values: Vec<f32> = (0..rows)
        .flat_map(|i| (0..columns).map(move |j| t(i, j)))
        .collect();
    Tensor::from_vec(values, (rows, columns), &Device::Cpu).unwrap()
}

/// Names for two linear layers' and a LayerNorm's weights and biases.
type Names<'n> = [&'n str; 6];

const TORCH: Names = [
    "linear1.weight",
    "linear1.bias",
    "linear2.weight",
    "linear2.bias",
    "norm.weight",
    "norm.bias",
];

fn parameters(d_ff: usize) -> [Tensor; 6] {
    let (vector, d_model) = (|n, k| formula(n, 1, k).flatten_all().unwrap(), 512);
    [
        (formula(d_ff, d_model, 1) / 2048.0).unwrap(),
        (vector(d_ff, 2) / 512.0).unwrap(),
        (formula(d_model, d_ff, 3) / 2048.0).unwrap(),
        (vector(d_model, 4) / 512.0).unwrap(),
        ((vector(d_model, 5) / 512.0).unwrap() + 1.0).unwrap(),
        (vector(d_model, 6) / 512.0).unwrap(),
    ]
}

fn save(names: Names, parameters: [Tensor; 6]) -> tempfile::TempDir {
    let folder = crate::folder::folder();
    let map: std::collections::HashMap<_, _> = names.into_iter().zip(parameters).collect();
    safetensors::save(&map, folder.path().join("sublayer.safetensors")).unwrap();
    folder
}

fn state_dict(d_ff: usize, norm: &str) -> tempfile::TempDir {
    let (weight, bias) = (format!("{norm}.weight"), format!("{norm}.bias"));
    let mut names = TORCH;
    names[4..].copy_from_slice(&[&weight, &bias]);
    save(names, parameters(d_ff))
}

fn prenorm_input() -> Tensor {
    let x = (formula(20, 512, 7) / 32.0).unwrap();
    let x = x.reshape((2, 10, 512)).unwrap();
    x.to_device(&device()).unwrap()
}

/// Names that people give to the layers, and to the norm.
#[test]
fn a_sublayer_under_every_name_equals_pytorch() {
    let layers = [
        ["W1", "b1", "W2", "b2"],
        ["ffn.w_1", "ffn.b_1", "ffn.w_2", "ffn.b_2"],
        ["0.weight", "0.bias", "2.weight", "2.bias"],
        ["net.1.weight", "net.1.bias", "net.4.weight", "net.4.bias"],
        ["lin1.weight", "lin1.bias", "lin2.weight", "lin2.bias"],
        [
            "linear_1.weight",
            "linear_1.bias",
            "linear_2.weight",
            "linear_2.bias",
        ],
        [
            "ff.dense1.kernel",
            "ff.dense1.bias",
            "ff.dense2.kernel",
            "ff.dense2.bias",
        ],
        ["weights.0", "biases.0", "weights.1", "biases.1"],
        [
            "h.3.mlp.c_fc.weight",
            "h.3.mlp.c_fc.bias",
            "h.3.mlp.c_proj.weight",
            "h.3.mlp.c_proj.bias",
        ],
        ["mlp/c_fc/w", "mlp/c_fc/b", "mlp/c_proj/w", "mlp/c_proj/b"],
        ["up.weight", "up.bias", "down.weight", "down.bias"],
        ["W_up", "b_up", "W_down", "b_down"],
        ["W_in", "b_in", "W_out", "b_out"],
        ["fc_in.weight", "fc_in.bias", "fc_out.weight", "fc_out.bias"],
        [
            "intermediate.dense.weight",
            "intermediate.dense.bias",
            "output.dense.weight",
            "output.dense.bias",
        ],
    ];
    let norms = [
        ["norm.weight", "norm.bias"],
        ["layer_norm.scale", "layer_norm.shift"],
        ["gamma", "beta"],
        ["scale", "shift"],
        ["ln.weight", "ln.bias"],
        ["LayerNorm.gamma", "LayerNorm.beta"],
        ["layernorm.weight", "layernorm.bias"],
        ["norm1.weight", "norm1.bias"],
        ["ln_weight", "ln_bias"],
        ["ln_gamma", "ln_beta"],
        ["block.ln_2.weight", "block.ln_2.bias"],
        ["ffn.gamma", "ffn.beta"],
        ["final_layer_norm.weight", "final_layer_norm.bias"],
        ["7.weight", "7.bias"],
    ];
    let reference = Reference::open("prenorm_ffn");
    let x = prenorm_input();
    let with_norm = layers.iter().map(|layers| (layers, &norms[0]));
    let with_layers = norms.iter().map(|norm| (&layers[0], norm));
    for (layers, norm) in with_norm.chain(with_layers) {
        let names: Vec<&str> = layers.iter().chain(norm).copied().collect();
        // Biases as vectors, as rows and as columns.
        for as_stored in [
            |bias: &Tensor| bias.clone(),
            |bias: &Tensor| bias.unsqueeze(0).unwrap(),
            |bias: &Tensor| bias.unsqueeze(1).unwrap(),
        ] {
            let mut parameters = parameters(100);
            for bias in [1, 3] {
                parameters[bias] = as_stored(&parameters[bias]);
            }
            let folder = save(names[..].try_into().unwrap(), parameters);
            let file = PlainFile::open(folder.path().join("sublayer.safetensors"))
                .unwrap_or_else(|error| panic!("{names:?}: {error}"));
            let sublayer = file.sublayer(
                Activation::Relu,
                NormPlacement::Pre,
                1e-5,
                DType::F32,
                &device(),
            );
            let y = sublayer.unwrap().forward_t(&x, false).unwrap();
            reference.check("pre.d_ff100", &y);
        }
    }
}

#[test]
fn names_of_ones_own_are_given_by_a_function() {
    let names = [
        "expand.k", "expand.c", "shrink.k", "shrink.c", "first.p", "first.q",
    ];
    let table: std::collections::HashMap<_, _> = names.into_iter().zip(TORCH).collect();
    let folder = save(names, parameters(100));
    let path = folder.path().join("sublayer.safetensors");
    let refused = PlainFile::open(&path).unwrap_err().to_string();
    assert!(refused.contains("PlainFile::open_renamed"), "{refused}");
    let renamed = |name: &str| table.get(name).map(|name| name.to_string());
    let file = PlainFile::open_renamed(&path, renamed).unwrap();
    let sublayer = file.sublayer(
        Activation::Relu,
        NormPlacement::Pre,
        1e-5,
        DType::F32,
        &device(),
    );
    let y = sublayer
        .unwrap()
        .forward_t(&prenorm_input(), false)
        .unwrap();
    Reference::open("prenorm_ffn").check("pre.d_ff100", &y);
    // Without a name a tensor is left out.
    let of_layers = |name: &str| renamed(name).filter(|name| !name.starts_with("norm"));
    let file = PlainFile::open_renamed(&path, of_layers).unwrap();
    assert!(file.layer_norm(1e-5, DType::F32, &device()).is_err());
    assert_eq!(file.n_layers(), 2);
}

#[test]
fn a_gate_in_a_plain_file_is_that_of_the_feed_forward() {
    let [gate, up, down] = [formula(24, 8, 1), formula(24, 8, 2), formula(8, 24, 3)];
    let [gate, up, down] = [gate, up, down].map(|weight| (weight / 2048.0).unwrap());
    let x = (formula(5, 8, 4) / 64.0).unwrap();
    let product = |x: &Tensor, weight: &Tensor| x.matmul(&weight.t().unwrap()).unwrap();
    let hidden = (product(&x, &gate).silu().unwrap() * product(&x, &up)).unwrap();
    let expected = product(&hidden, &down);
    for names in [
        ["gate_proj.weight", "up_proj.weight", "down_proj.weight"],
        ["mlp.W_gate", "mlp.W_up", "mlp.W_down"],
        ["wi_0.weight", "wi_1.weight", "wo.weight"],
    ] {
        let folder = crate::folder::folder();
        let path = folder.path().join("gated.safetensors");
        let tensors = [gate.clone(), up.clone(), down.clone()];
        let map: std::collections::HashMap<_, _> = names.into_iter().zip(tensors).collect();
        safetensors::save(&map, &path).unwrap();
        let file = PlainFile::open(path).unwrap();
        let file = file.with_orientation(Orientation::OutIn);
        let layer = file.feed_forward(Activation::Silu, DType::F32, &device());
        let y = layer.unwrap().forward(&x.to_device(&device()).unwrap());
        let y = y.unwrap().to_device(&Device::Cpu).unwrap();
        let difference = (y - &expected).unwrap().abs().unwrap();
        let difference = difference.max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(difference < 1e-5, "{names:?}: {difference}");
        let refused = file.linears(DType::F32, &device()).unwrap_err();
        assert!(refused.to_string().contains("is a gate"), "{refused}");
    }
}

#[test]
fn prenorm_and_postnorm_sublayers_equal_pytorch() {
    let reference = Reference::open("prenorm_ffn");
    let x = prenorm_input();
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
    let folder = crate::folder::folder();
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
            // All positions share the parameters: each row alone gives the same result. A GPU's matrix products may differ
            // in the last bit for another number of rows.
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
fn a_square_mlp_needs_its_layout_and_gives_both() {
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
fn layer_norm_by_scale_and_shift_gives_the_expected_digits() {
    let folder = crate::folder::folder();
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
