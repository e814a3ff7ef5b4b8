//! Norms and PReLUs in plain files: each accessor applies them at their place or refuses them by name. Values come from
//! candle's float64 operations.

use std::collections::HashMap;
use std::path::PathBuf;

use candle_blocks::{
    Activation, NormPlacement, PlainFile, Result, Sublayer, SublayerNorm,
    candle_core::{D, DType, Device, Module, ModuleT, Tensor, safetensors},
    candle_nn::PReLU,
    checkpoint::scheme::Orientation,
    config::NormKind,
};

use crate::{message::message, numbers::numbers, said::assert_says};

const CPU: Device = Device::Cpu;
const F32: DType = DType::F32;
const EPS: f64 = 1e-5;
/// The widths: input and output, and hidden.
const WIDTHS: [usize; 2] = [4, 6];

/// Returns values that differ everywhere, around `center`.
fn drawn(shape: &[usize], k: usize, center: f64) -> Tensor {
    let n: usize = shape.iter().product();
    let value = |i: usize| center + ((37 * i + 101 * k) % 89) as f64 / 89.0 - 0.5;
    let values: Vec<f64> = (0..n).map(value).collect();
    Tensor::from_vec(values, shape, &CPU).unwrap()
}

/// Float64 parameters of `down(relu(up(x)))`, and the norm's for one of the widths.
struct Parts {
    up: [Tensor; 2],
    down: [Tensor; 2],
    norms: HashMap<usize, [Tensor; 2]>,
}

impl Parts {
    fn new() -> Self {
        let [d, f] = WIDTHS;
        let norm = |n, k| (n, [drawn(&[n], k, 1.0), drawn(&[n], k + 1, 0.0)]);
        Self {
            up: [drawn(&[f, d], 1, 0.0), drawn(&[f], 2, 0.0)],
            down: [drawn(&[d, f], 3, 0.0), drawn(&[d], 4, 0.0)],
            norms: HashMap::from([norm(d, 5), norm(f, 7)]),
        }
    }

    fn up(&self, x: &Tensor) -> Tensor {
        affine(x, &self.up)
    }

    fn down(&self, x: &Tensor) -> Tensor {
        affine(x, &self.down)
    }

    fn layer_norm(&self, x: &Tensor) -> Tensor {
        let x = x
            .broadcast_sub(&x.mean_keepdim(D::Minus1).unwrap())
            .unwrap();
        let [_, bias] = &self.norms[&x.dim(1).unwrap()];
        self.rms_norm(&x).broadcast_add(bias).unwrap()
    }

    fn rms_norm(&self, x: &Tensor) -> Tensor {
        let [weight, _] = &self.norms[&x.dim(1).unwrap()];
        let square = x.sqr().unwrap().mean_keepdim(D::Minus1).unwrap();
        let scale = (square + EPS).unwrap().sqrt().unwrap();
        let x = x.broadcast_div(&scale).unwrap();
        x.broadcast_mul(weight).unwrap()
    }

    /// Returns the two layers' tensors under these names, with a norm's.
    fn named(&self, layers: [&str; 2], norm: &[(&str, &Tensor)]) -> Vec<(String, Tensor)> {
        let [up, down] = layers;
        let mut all = vec![];
        for (stem, [weight, bias]) in [(up, &self.up), (down, &self.down)] {
            all.push((format!("{stem}.weight"), weight.clone()));
            all.push((format!("{stem}.bias"), bias.clone()));
        }
        let norm = norm.iter();
        all.extend(norm.map(|(name, tensor)| (name.to_string(), (*tensor).clone())));
        all
    }
}

fn affine(x: &Tensor, [weight, bias]: &[Tensor; 2]) -> Tensor {
    let product = x.matmul(&weight.t().unwrap()).unwrap();
    product.broadcast_add(bias).unwrap()
}

fn x() -> Tensor {
    drawn(&[3, WIDTHS[0]], 9, 0.2)
}

fn in_f32(tensor: &Tensor) -> Tensor {
    tensor.to_dtype(F32).unwrap()
}

/// Saves the tensors as f32.
fn saved(tensors: &[(String, Tensor)]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mlp.safetensors");
    let all = tensors.iter();
    let all: HashMap<&str, Tensor> = all.map(|(n, t)| (n.as_str(), in_f32(t))).collect();
    safetensors::save(&all, &path).unwrap();
    (folder, path)
}

fn opened(tensors: &[(String, Tensor)]) -> PlainFile {
    let (_folder, path) = saved(tensors);
    PlainFile::open(path).unwrap()
}

#[track_caller]
fn assert_equals(found: &Tensor, expected: &Tensor, what: &str) {
    assert_eq!(found.dims(), expected.dims(), "{what}");
    for (found, expected) in numbers(found).into_iter().zip(numbers(expected)) {
        // Sums of at most six products around 1, and a norm.
        let bound = 64.0 * f64::from(f32::EPSILON) * expected.abs().max(1.0);
        assert!(
            (found - expected).abs() < bound,
            "{what}: {found} for {expected}"
        );
    }
}

/// Returns the messages of all accessors that apply no norm.
fn refused(file: &PlainFile) -> [String; 4] {
    let relu = Activation::Relu;
    [
        message(file.linears(F32, &CPU)),
        message(file.mlp(relu, F32, &CPU)),
        message(file.feed_forward(relu, F32, &CPU)),
        message(file.sublayer(relu, NormPlacement::None, EPS, F32, &CPU)),
    ]
}

/// `nn.Sequential` with a norm before, between and after its two linear layers: the names of its modules, the norm's
/// width, and words for its place.
const PLACES: [([&str; 2], &str, usize, &str); 3] = [
    (["1", "3"], "0", WIDTHS[0], "before the linear layers"),
    (["0", "3"], "1", WIDTHS[1], "between 0.weight and 3.weight"),
    (["0", "2"], "3", WIDTHS[0], "after the linear layers"),
];

#[test]
fn a_norm_in_a_sequential_is_refused_by_layers_that_do_not_apply_it() {
    let parts = Parts::new();
    for (layers, norm, width, place) in PLACES {
        let [weight, bias] = &parts.norms[&width];
        let names = [format!("{norm}.weight"), format!("{norm}.bias")];
        let both = [(names[0].as_str(), weight), (names[1].as_str(), bias)];
        for (of_norm, extra) in [(&both[..], ""), (&both[..1], "or the slopes of a PReLU")] {
            let file = opened(&parts.named(layers, of_norm));
            for text in refused(&file) {
                assert_says(
                    &text,
                    &[&names[0], place, extra, "`layer_norm`", "`rms_norm`"],
                );
            }
        }
    }
}

#[test]
fn a_norm_with_a_name_is_refused_by_layers_that_do_not_apply_it() {
    let parts = Parts::new();
    let [weight, bias] = &parts.norms[&WIDTHS[0]];
    for [weight_name, bias_name] in [["ln.weight", "ln.bias"], ["gamma", "beta"]] {
        let of_norm = [(weight_name, weight), (bias_name, bias)];
        let file = opened(&parts.named(["fc1", "fc2"], &of_norm));
        for text in refused(&file) {
            assert_says(
                &text,
                &[weight_name, "`sublayer`", "`PlainFile::open_renamed`"],
            );
        }
        // The advice: without the norm, or with the norm in the caller's hands.
        let (_folder, path) = saved(&parts.named(["fc1", "fc2"], &of_norm));
        let of_layers = |name: &str| name.starts_with("fc").then(|| name.to_string());
        let file = PlainFile::open_renamed(&path, of_layers).unwrap();
        let expected = parts.down(&parts.up(&x()).relu().unwrap());
        let layer = file.feed_forward(Activation::Relu, F32, &CPU).unwrap();
        assert_equals(
            &layer.forward(&in_f32(&x())).unwrap(),
            &expected,
            "left out",
        );
        let file = PlainFile::open(&path).unwrap();
        let norm = file.layer_norm(EPS, F32, &CPU).unwrap();
        let layer = file.feed_forward(Activation::Relu, F32, &CPU).unwrap();
        let expected = parts.down(&parts.up(&parts.layer_norm(&x())).relu().unwrap());
        let y = layer.forward(&norm.forward(&in_f32(&x())).unwrap());
        assert_equals(&y.unwrap(), &expected, "by hand");
    }
}

/// `Linear, norm, ReLU, Linear` with both kinds of norm.
#[test]
fn a_norm_between_layers_is_loaded_first_and_applied_by_hand() {
    let parts = Parts::new();
    let [weight, bias] = &parts.norms[&WIDTHS[1]];
    type OfRows = fn(&Parts, &Tensor) -> Tensor;
    type Named<'t> = &'t [(&'t str, &'t Tensor)];
    let cases: [(Named, bool, OfRows); 2] = [
        (
            &[("1.weight", weight), ("1.bias", bias)],
            false,
            Parts::layer_norm,
        ),
        (&[("1.weight", weight)], true, Parts::rms_norm),
    ];
    for (of_norm, is_rms, expected) in cases {
        let file = opened(&parts.named(["0", "3"], of_norm));
        let norm = match is_rms {
            true => file.rms_norm(EPS, F32, &CPU),
            false => file.layer_norm(EPS, F32, &CPU),
        };
        let layers = file.linears(F32, &CPU).unwrap();
        let y = layers[0].forward(&in_f32(&x())).unwrap();
        let y = norm.unwrap().forward(&y).unwrap().relu().unwrap();
        let expected = expected(&parts, &parts.up(&x())).relu().unwrap();
        assert_equals(
            &layers[1].forward(&y).unwrap(),
            &parts.down(&expected),
            "between",
        );
    }
}

#[test]
fn a_sublayer_has_the_norm_at_its_place_in_the_file_or_is_refused() {
    let (parts, relu) = (Parts::new(), Activation::Relu);
    for (layers, norm, width, place) in PLACES {
        let [weight, bias] = &parts.norms[&width];
        let names = [format!("{norm}.weight"), format!("{norm}.bias")];
        let of_norm = [(names[0].as_str(), weight), (names[1].as_str(), bias)];
        let file = opened(&parts.named(layers, &of_norm));
        let inner = |x: &Tensor| parts.down(&parts.up(x).relu().unwrap());
        for placement in [
            NormPlacement::Pre,
            NormPlacement::Post,
            NormPlacement::Output,
        ] {
            let loaded = file.sublayer(relu, placement, EPS, F32, &CPU);
            let x = x();
            let expected = match (placement, place) {
                (NormPlacement::Pre, "before the linear layers") => {
                    (&x + inner(&parts.layer_norm(&x))).unwrap()
                }
                (NormPlacement::Post, "after the linear layers") => {
                    parts.layer_norm(&(&x + inner(&x)).unwrap())
                }
                (NormPlacement::Output, "after the linear layers") => {
                    (&x + parts.layer_norm(&inner(&x))).unwrap()
                }
                _ => {
                    let words = [names[0].as_str(), place, &format!("{placement:?}")];
                    assert_says(message(loaded), &words);
                    continue;
                }
            };
            let y = loaded.unwrap().forward_t(&in_f32(&x), false).unwrap();
            assert_equals(&y, &expected, &format!("{placement:?} {place}"));
        }
    }
}

/// A weight without a bias is a LayerNorm's or an RMSNorm's, and the file does not say whose.
#[test]
fn the_kind_of_a_norm_without_a_bias_is_said() {
    let (parts, relu) = (Parts::new(), Activation::Relu);
    let [weight, bias] = &parts.norms[&WIDTHS[0]];
    let x = x();
    let inner = |x: &Tensor| parts.down(&parts.up(x).relu().unwrap());
    let of_rms = (&x + inner(&parts.rms_norm(&x))).unwrap();
    let sublayer = |file: &PlainFile| file.sublayer(relu, NormPlacement::Pre, EPS, F32, &CPU);
    let y = |file: &PlainFile| {
        sublayer(file)
            .unwrap()
            .forward_t(&in_f32(&x), false)
            .unwrap()
    };
    for name in [
        "norm.weight",
        "ln.weight",
        "layer_norm.gamma",
        "scale",
        "0.weight",
    ] {
        let layers = if name == "0.weight" {
            ["1", "3"]
        } else {
            ["fc1", "fc2"]
        };
        let file = opened(&parts.named(layers, &[(name, weight)]));
        assert_says(
            message(sublayer(&file)),
            &[name, "no bias", "`PlainFile::with_norm`"],
        );
        let file = file.with_norm(NormKind::RmsNorm);
        assert_equals(&y(&file), &of_rms, name);
        assert_says(
            message(file.layer_norm(EPS, F32, &CPU)),
            &[name, "an RMSNorm", "`rms_norm`"],
        );
        let file = file.with_norm(NormKind::LayerNorm);
        let [_, zero] = &parts.norms[&WIDTHS[0]];
        let expected = parts.layer_norm(&x).broadcast_sub(zero).unwrap();
        assert_equals(&y(&file), &(&x + inner(&expected)).unwrap(), name);
    }
    // The name says it.
    for name in ["rms_norm.weight", "ffn.RMSNorm.weight", "rmsnorm_1.scale"] {
        let file = opened(&parts.named(["fc1", "fc2"], &[(name, weight)]));
        assert_equals(&y(&file), &of_rms, name);
        assert_says(
            message(file.layer_norm(EPS, F32, &CPU)),
            &[name, "`rms_norm`"],
        );
    }
    let of_norm = [("norm.weight", weight), ("norm.bias", bias)];
    let file = opened(&parts.named(["fc1", "fc2"], &of_norm));
    let expected = (&x + inner(&parts.layer_norm(&x))).unwrap();
    assert_equals(&y(&file), &expected, "with a bias");
}

/// `nn.Sequential(Linear, PReLU, Linear)`, with one slope and with one for each feature.
#[test]
fn the_slopes_of_a_prelu_are_refused_and_applied_by_hand() {
    let parts = Parts::new();
    for n in [1, WIDTHS[1]] {
        let slopes = drawn(&[n], 11, 0.25);
        let (_folder, path) = saved(&parts.named(["0", "2"], &[("1.weight", &slopes)]));
        let found = match PlainFile::open(&path) {
            Err(error) => [error.to_string()].to_vec(),
            Ok(file) => refused(&file).to_vec(),
        };
        for text in found {
            assert_says(&text, &["1.weight", "PReLU", "`PlainFile::open_renamed`"]);
        }
        let without = |name: &str| (name != "1.weight").then(|| name.to_string());
        let file = PlainFile::open_renamed(&path, without).unwrap();
        let layers = file.linears(F32, &CPU).unwrap();
        let prelu = PReLU::new(file.files().read("1.weight").unwrap(), n == 1);
        let y = layers[0].forward(&in_f32(&x())).unwrap();
        let y = layers[1].forward(&prelu.forward(&y).unwrap()).unwrap();
        let hidden = parts.up(&x());
        let negative = hidden.neg().unwrap().relu().unwrap();
        let hidden = (hidden.relu().unwrap() - negative.broadcast_mul(&slopes).unwrap()).unwrap();
        assert_equals(&y, &parts.down(&hidden), "PReLU");
    }
}

fn gated_files(names: [&str; 3], orientation: Orientation) -> Vec<(String, Tensor)> {
    let [d, f] = WIDTHS;
    let weights = [
        drawn(&[f, d], 1, 0.0),
        drawn(&[f, d], 2, 0.0),
        drawn(&[d, f], 3, 0.0),
    ];
    let named = names.into_iter().zip(weights);
    let stored = named.map(|(name, weight)| match orientation {
        Orientation::OutIn => (name.to_string(), weight),
        Orientation::InOut => (name.to_string(), weight.t().unwrap().contiguous().unwrap()),
    });
    stored.collect()
}

fn gated(x: &Tensor) -> Tensor {
    let [gate, up, down] = ["gate", "up", "down"];
    let all: HashMap<_, _> = gated_files([gate, up, down], Orientation::OutIn)
        .into_iter()
        .collect();
    let product = |x: &Tensor, name: &str| x.matmul(&all[name].t().unwrap()).unwrap();
    let hidden = (product(x, gate).silu().unwrap() * product(x, up)).unwrap();
    product(&hidden, down)
}

/// Both orientations fit the shapes of a gated feed-forward without biases. PyTorch's, Llama's and Flax's names tell.
#[test]
fn a_gated_feed_forward_without_biases_is_told_by_its_names() {
    let files = [
        (
            ["gate.weight", "up.weight", "down.weight"],
            Orientation::OutIn,
        ),
        (
            [
                "mlp.gate_proj.weight",
                "mlp.up_proj.weight",
                "mlp.down_proj.weight",
            ],
            Orientation::OutIn,
        ),
        (
            [
                "feed_forward.w1.weight",
                "feed_forward.w3.weight",
                "feed_forward.w2.weight",
            ],
            Orientation::OutIn,
        ),
        (["w1.weight", "w3.weight", "w2.weight"], Orientation::OutIn),
        (
            ["wi_0.weight", "wi_1.weight", "wo.weight"],
            Orientation::OutIn,
        ),
        (
            ["mlp.wi_0.kernel", "mlp.wi_1.kernel", "mlp.wo.kernel"],
            Orientation::InOut,
        ),
    ];
    for (names, orientation) in files {
        let file = opened(&gated_files(names, orientation));
        assert_eq!(file.orientation().unwrap(), orientation, "{names:?}");
        let layer = file.feed_forward(Activation::Silu, F32, &CPU).unwrap();
        let y = layer.forward(&in_f32(&x())).unwrap();
        assert_equals(&y, &gated(&x()), names[0]);
        let text = message(file.mlp(Activation::Silu, F32, &CPU));
        assert_says(&text, &[names[0], "is a gate"]);
    }
    // NumPy's names do not tell, and neither do names that the caller chose.
    let file = opened(&gated_files(
        ["W_gate", "W_up", "W_down"],
        Orientation::OutIn,
    ));
    assert_says(
        message(file.orientation()),
        &["W_up", "`PlainFile::with_orientation`"],
    );
    let (_folder, path) = saved(&gated_files(["a", "b", "c"], Orientation::InOut));
    let own = HashMap::from([
        ("a", "gate.weight"),
        ("b", "up.weight"),
        ("c", "down.weight"),
    ]);
    let file = PlainFile::open_renamed(&path, |name| Some(own[name].to_string())).unwrap();
    assert_says(
        message(file.orientation()),
        &["`PlainFile::with_orientation`"],
    );
    let layer = file.with_orientation(Orientation::InOut);
    let layer = layer.feed_forward(Activation::Silu, F32, &CPU).unwrap();
    assert_equals(
        &layer.forward(&in_f32(&x())).unwrap(),
        &gated(&x()),
        "given",
    );
}

/// The width of the norm of a sublayer is that of its input.
#[test]
fn a_gated_feed_forward_without_biases_is_told_by_its_norm() {
    let parts = Parts::new();
    let [weight, _] = &parts.norms[&WIDTHS[0]];
    for orientation in [Orientation::OutIn, Orientation::InOut] {
        let mut tensors = gated_files(["W_gate", "W_up", "W_down"], orientation);
        tensors.push(("norm.weight".to_string(), weight.clone()));
        let file = opened(&tensors).with_norm(NormKind::RmsNorm);
        let placement = NormPlacement::Pre;
        let layer = file
            .sublayer(Activation::Silu, placement, EPS, F32, &CPU)
            .unwrap();
        let y = layer.forward_t(&in_f32(&x()), false).unwrap();
        let expected = (x() + gated(&parts.rms_norm(&x()))).unwrap();
        assert_equals(&y, &expected, "by the norm");
    }
}

/// A sublayer whose norm was loaded alone, as the messages advise.
#[test]
fn a_loaded_norm_makes_a_sublayer() -> Result<()> {
    let parts = Parts::new();
    let [weight, bias] = &parts.norms[&WIDTHS[0]];
    let file = opened(&parts.named(["fc1", "fc2"], &[("gamma", weight), ("beta", bias)]));
    let norm = SublayerNorm::Pre(file.layer_norm(EPS, F32, &CPU)?);
    let layer = Sublayer::new(file.feed_forward(Activation::Relu, F32, &CPU)?, norm);
    let y = layer.forward_t(&in_f32(&x()), false)?;
    let inner = parts.down(&parts.up(&parts.layer_norm(&x())).relu()?);
    assert_equals(&y, &(x() + inner)?, "by parts");
    let plain = file.sublayer(Activation::Relu, NormPlacement::None, EPS, F32, &CPU)?;
    let expected = (x() + parts.down(&parts.up(&x()).relu()?))?;
    assert_equals(
        &plain.forward_t(&in_f32(&x()), false)?,
        &expected,
        "without",
    );
    Ok(())
}
