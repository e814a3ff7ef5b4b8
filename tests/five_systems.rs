//! The five systems that the crate was first asked to cover, each against NumPy or PyTorch.

mod common;

use candle_blocks::{
    Activation, Checkpoint, Dropout, DropoutSource, FeedForward, FeedForwardConfig, Linear, Norm,
    NormConfig, NormPlacement, PlainFile, Sublayer, SublayerNorm,
    candle_core::{DType, Device, Module, ModuleT, Tensor, safetensors},
    candle_nn::{VarBuilder, VarMap},
    checkpoint::scheme::Orientation,
};
use common::{Reference, bits, computable, device, has_f64, present, weights};

// 1. The feed-forward residual block x + Dropout(W2·ReLU(W1·x + b1) + b2).

fn residual_block(parts: [&Tensor; 4], dropout: Dropout) -> Sublayer<FeedForward> {
    let [w1, b1, w2, b2] = parts.map(Clone::clone);
    let up = Linear::from_parts(w1, Some(b1)).unwrap();
    let down = Linear::from_parts(w2, Some(b2)).unwrap();
    let inner = FeedForward::from_parts(None, up, down, Activation::Relu).unwrap();
    Sublayer::from_parts(inner, SublayerNorm::None).with_dropout(dropout)
}

#[test]
fn residual_block_without_dropout_is_exact() {
    if !has_f64("the residual block in f64") {
        return;
    }
    let device = device();
    let vector = |v: &[f64]| Tensor::new(v, &device).unwrap();
    let matrix = |rows: &[&[f64]]| {
        let rows: Vec<Vec<f64>> = rows.iter().map(|r| r.to_vec()).collect();
        Tensor::new(rows, &device).unwrap()
    };
    let cases = [
        (
            vector(&[1., -1.]),
            [matrix(&[&[1., 2.], &[3., 4.]]), vector(&[0.5, -0.5])],
            [matrix(&[&[2., 1.], &[0.5, 1.]]), vector(&[0., 0.5])],
            vec![1., -0.5],
        ),
        (
            vector(&[1., 2.]),
            [matrix(&[&[1., 0.], &[0., 1.]]), vector(&[0., 0.])],
            [matrix(&[&[1., 0.], &[0., 1.]]), vector(&[0., 0.])],
            vec![2., 4.],
        ),
        (
            vector(&[0.5; 3]),
            [matrix(&[&[1., 1., 1.] as &[f64]; 3]), vector(&[0.; 3])],
            [
                matrix(&[&[0.5, 0.5, 0.5] as &[f64]; 3]),
                vector(&[0.1, 0.2, 0.3]),
            ],
            vec![2.85, 2.95, 3.05],
        ),
    ];
    for (x, [w1, b1], [w2, b2], expected) in cases {
        let block = residual_block([&w1, &b1, &w2, &b2], Dropout::none());
        let y = block.forward_t(&x, true).unwrap().to_vec1::<f64>().unwrap();
        assert_eq!(y, expected);
    }
}

#[test]
fn seeded_dropout_equals_numpy_bit_for_bit() {
    if !has_f64("dropout's bits in f64") {
        return;
    }
    let reference = Reference::open("dropout");
    let mut n_cases = 0;
    for name in reference.names() {
        let Some(case) = name.strip_suffix(".out") else {
            continue;
        };
        let (size, rest) = case.split_once(".seed").unwrap();
        let (seed, p) = rest.split_once(".p").unwrap();
        let (seed, p): (u32, f64) = (seed.parse().unwrap(), p.parse().unwrap());
        let parts = ["W1", "b1", "W2", "b2"].map(|part| reference.get(&format!("{size}.{part}")));
        let dropout = Dropout::new(p, DropoutSource::numpy(seed)).unwrap();
        let block = residual_block([&parts[0], &parts[1], &parts[2], &parts[3]], dropout);
        let y = block
            .forward_t(&reference.get(&format!("{size}.x")), true)
            .unwrap();
        assert_eq!(bits(&y), bits(&reference.get(&name)), "{name}");
        n_cases += 1;
    }
    assert!(n_cases >= 100, "only {n_cases} cases");
}

#[test]
fn dropout_draws_in_training_only_and_its_rate_is_p() {
    if !has_f64("dropout's rate in f64") {
        return;
    }
    let x = Tensor::ones((100, 100), DType::F64, &device()).unwrap();
    let dropout = Dropout::new(0.3, DropoutSource::seeded(7)).unwrap();
    assert_eq!(bits(&dropout.forward_t(&x, false).unwrap()), bits(&x));
    let y = dropout.forward_t(&x, true).unwrap();
    let values: Vec<f64> = y.flatten_all().unwrap().to_vec1().unwrap();
    let dropped = values.iter().filter(|&&v| v == 0.0).count() as f64;
    assert!(values.iter().all(|&v| v == 0.0 || v == 1.0 / (1.0 - 0.3)));
    // Five standard deviations of a binomial.
    assert!(
        (dropped - 3000.0).abs() < 5.0 * (10_000.0 * 0.3 * 0.7f64).sqrt(),
        "{dropped}"
    );
    let again = Dropout::new(0.3, DropoutSource::seeded(7)).unwrap();
    assert_eq!(bits(&again.forward_t(&x, true).unwrap()), bits(&y));
    assert_ne!(
        bits(&again.forward_t(&x, true).unwrap()),
        bits(&y),
        "the stream goes on"
    );
}

#[test]
fn dropout_refuses_a_probability_outside_zero_to_one() {
    for p in [-0.1, 1.0, 1.5, f64::NAN] {
        assert!(Dropout::new(p, DropoutSource::Candle).is_err(), "{p}");
    }
}

// 2. The pre-norm feed-forward sublayer with names linear1, linear2, norm or layer_norm.

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

// 3. The NumPy MLP relu(y @ W1 + b1) @ W2 + b2.

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

// 4. The parts by themselves.

#[test]
fn linear_equals_pytorch_on_vector_matrix_and_batch() {
    let reference = Reference::open("torch_parts");
    let [weight, bias] = ["linear.weight", "linear.bias"].map(|name| reference.get(name));
    let linear = Linear::from_parts(weight, Some(bias)).unwrap();
    for case in ["vector", "matrix", "batch"] {
        let x = reference.get(&format!("linear.{case}.x"));
        reference.check(
            &format!("linear.{case}.output"),
            &linear.forward(&x).unwrap(),
        );
    }
}

#[test]
fn relu_and_gelu_equal_pytorch() {
    let reference = Reference::open("torch_parts");
    for activation in [Activation::Relu, Activation::Gelu] {
        let x = reference.get(&format!("{activation}.x"));
        let y = activation.forward(&x).unwrap();
        reference.check(&format!("{activation}.output"), &y);
    }
}

#[test]
fn dropout_of_one_half_doubles_what_it_keeps() {
    if !has_f64("dropout in f64") {
        return;
    }
    let x = Tensor::new(&[1f64, -2., 3., -4., 5., -6.], &device()).unwrap();
    let dropout = Dropout::new(0.5, DropoutSource::numpy(1)).unwrap();
    let y: Vec<f64> = dropout.forward_t(&x, true).unwrap().to_vec1().unwrap();
    let mut kept = 0;
    for (y, x) in y.iter().zip(x.to_vec1::<f64>().unwrap()) {
        assert!(*y == 0.0 || *y == 2.0 * x, "{y} of {x}");
        kept += usize::from(*y != 0.0);
    }
    assert!(kept > 0 && kept < 6, "{kept} of 6 kept");
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

// 5. FeedForward with defaults, and its initialisation.

#[test]
fn feed_forward_is_four_times_as_wide_by_default() {
    let config = FeedForwardConfig::new(6);
    assert_eq!((config.d_ff, config.activation), (24, Activation::Gelu));
    let parameters = VarMap::new();
    let vb = VarBuilder::from_varmap(&parameters, DType::F32, &device());
    let layer = FeedForward::new(&config.with_dropout(0.5), vb).unwrap();
    assert_eq!(layer.up().weight().dims(), [24, 6]);
    assert_eq!(layer.down().weight().dims(), [6, 24]);
}

#[test]
fn dropout_stands_behind_the_activation() {
    if !has_f64("a feed-forward with dropout in f64") {
        return;
    }
    let ones = |shape: (usize, usize)| Tensor::ones(shape, DType::F64, &device()).unwrap();
    let linear = |shape| Linear::from_parts(ones(shape), None).unwrap();
    let dropout = Dropout::new(0.5, DropoutSource::numpy(3)).unwrap();
    let layer = FeedForward::from_parts(None, linear((4, 1)), linear((1, 4)), Activation::Relu);
    let layer = layer.unwrap().with_dropout(dropout);
    // np.random.seed(3); np.random.rand(4) -> .551, .708, .291, .511: three are kept and doubled.
    let y = layer
        .forward_t(&Tensor::new(&[1f64], &device()).unwrap(), true)
        .unwrap();
    assert_eq!(y.to_vec1::<f64>().unwrap(), [6.0]);
}

#[test]
fn fresh_parameters_have_the_asked_statistics() {
    let (d_model, d_ff) = (300, 700);
    let config = FeedForwardConfig::new(d_model).with_d_ff(d_ff);
    let parameters = VarMap::new();
    let vb = VarBuilder::from_varmap(&parameters, DType::F32, &device());
    let layer = FeedForward::new(&config, vb).unwrap();
    let n = (d_model * d_ff) as f64;
    for (weight, deviation) in [
        (layer.up().weight(), (2.0 / d_model as f64).sqrt()),
        (
            layer.down().weight(),
            0.02 * (2.0 / (d_model + d_ff) as f64).sqrt(),
        ),
    ] {
        let values: Vec<f32> = weight.flatten_all().unwrap().to_vec1().unwrap();
        let moment = |k| {
            values
                .iter()
                .map(|&v| (f64::from(v) / deviation).powi(k))
                .sum::<f64>()
                / n
        };
        // Five standard errors of a normal sample's moments.
        assert!(moment(1).abs() < 5.0 / n.sqrt(), "mean {}", moment(1));
        assert!(
            (moment(2) - 1.0).abs() < 5.0 * (2.0 / n).sqrt(),
            "variance {}",
            moment(2)
        );
        assert!(
            (moment(4) - 3.0).abs() < 5.0 * (96.0 / n).sqrt(),
            "fourth moment {}",
            moment(4)
        );
    }
    for bias in [layer.up().bias(), layer.down().bias()] {
        let largest = bias.unwrap().abs().unwrap().max_all().unwrap();
        assert_eq!(largest.to_scalar::<f32>().unwrap(), 0.0);
    }
}

#[test]
fn the_committed_block_has_the_feed_forward_twice_as_large_as_its_attention() {
    for name in present(["minilm-block0"], |&name| name) {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        let report = checkpoint.report();
        let count = |part: &str| -> usize {
            let of_part = report.used.iter().filter(|t| t.roles[0].contains(part));
            let info = of_part.map(|t| checkpoint.files().info(&t.name).unwrap());
            info.map(|info| info.shape.iter().product::<usize>()).sum()
        };
        let ratio = count(".feed_forward.") as f64 / count(".attention.") as f64;
        assert!((ratio - 2.0).abs() < 0.01, "{ratio}");
    }
}
