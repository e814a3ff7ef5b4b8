//! A feed-forward that a script saved without a configuration: names, layouts, and what is refused.

use candle_blocks::{
    Activation, Error, FeedForward, Linear, PlainFile,
    candle_core::{DType, Device, Module, Tensor},
    checkpoint::{scheme::Orientation, write::write_safetensors},
};

use crate::{numbers::bits, said::assert_says};

const CPU: Device = Device::Cpu;

type Tensors = Vec<(String, Tensor)>;

fn named<const N: usize>(tensors: [(&str, Tensor); N]) -> Tensors {
    tensors
        .map(|(name, tensor)| (name.to_string(), tensor))
        .into()
}

fn ones(dims: &[usize]) -> Tensor {
    Tensor::ones(dims, DType::F32, &CPU).unwrap()
}

fn plain(tensors: &[(String, Tensor)]) -> (tempfile::TempDir, Result<PlainFile, Error>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mlp.safetensors");
    write_safetensors(&path, tensors, None).unwrap();
    let file = PlainFile::open(path);
    (folder, file)
}

fn feed_forward(file: PlainFile) -> Result<FeedForward, Error> {
    file.feed_forward(Activation::Relu, DType::F32, &CPU)
}

#[test]
fn plain_files_are_read_under_every_name_with_and_without_biases() {
    for [w1, b1, w2, b2] in [
        ["W1", "b1", "W2", "b2"],
        [
            "linear1.weight",
            "linear1.bias",
            "linear2.weight",
            "linear2.bias",
        ],
        ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"],
    ] {
        // NumPy's layout, and biases as rows.
        let weights = named([(w1, ones(&[2, 3])), (w2, ones(&[3, 2]))]);
        let biases = named([(b1, ones(&[1, 3])), (b2, ones(&[2]))]);
        for (tensors, expected) in [
            ([&weights[..], &biases].concat(), 10.),
            (weights.clone(), 6.),
        ] {
            let (_folder, file) = plain(&tensors);
            let file = file.unwrap().with_orientation(Orientation::InOut);
            assert_eq!(
                (file.n_layers(), file.orientation().unwrap()),
                (2, Orientation::InOut)
            );
            let y = feed_forward(file).unwrap().forward(&ones(&[2])).unwrap();
            assert_eq!(y.to_vec1::<f32>().unwrap(), [expected; 2], "{w1}");
        }
    }
}

/// Contents of a file, and words in the error when it is opened or loaded.
#[test]
fn faulty_plain_files_are_refused_with_the_culprit() {
    let (w1, b1) = (("W1", ones(&[3, 2])), ("b1", ones(&[3])));
    let (w2, b2) = (("W2", ones(&[2, 3])), ("b2", ones(&[2])));
    let integers = ones(&[3, 2]).to_dtype(DType::I64).unwrap();
    let cases: [(Tensors, &[&str]); 17] = [
        (
            named([w1.clone(), b1.clone(), w2.clone()]),
            &["W1 has a bias and W2 has none"],
        ),
        (
            named([
                w1.clone(),
                b1.clone(),
                w2.clone(),
                b2.clone(),
                ("b3", ones(&[2])),
            ]),
            &["b3 is a bias without a weight"],
        ),
        (
            named([("expand.kern", ones(&[3, 2]))]),
            &[
                "expand.kern is not a known name",
                "W1/b1",
                "gamma/beta",
                "PlainFile::open_renamed",
            ],
        ),
        (
            named([w1.clone(), ("W3", ones(&[2, 3]))]),
            &[
                "a layer is missing between W1 and W3",
                "the file contains W1, W3",
            ],
        ),
        (
            named([("W2", ones(&[3, 2])), ("W3", ones(&[2, 3]))]),
            &["a layer is missing before W2"],
        ),
        (
            named([("a.W1", ones(&[3, 2])), ("b.W2", ones(&[2, 3]))]),
            &["a.W1 and b.W2 do not belong to one chain"],
        ),
        (
            named([w1.clone(), ("w_1", ones(&[3, 2]))]),
            &["W1 and w_1 are the same parameter"],
        ),
        (
            named([
                w1.clone(),
                ("ln1.weight", ones(&[2])),
                ("ln2.weight", ones(&[2])),
            ]),
            &["ln1.weight and ln2.weight belong to two norms"],
        ),
        (
            named([("fc1.weight", ones(&[3, 2])), ("fc1.scale", ones(&[3]))]),
            &["fc1.scale is beside fc1.weight, where norms have other names"],
        ),
        (
            named([w1.clone(), ("batch_norm.weight", ones(&[2]))]),
            &["batch_norm.weight is not a known name"],
        ),
        (
            named([("q.weight", ones(&[2, 2])), ("k.weight", ones(&[2, 2]))]),
            &[
                "belongs to no layer with a known name",
                "k.weight, q.weight",
            ],
        ),
        (
            named([w1.clone(), b1.clone(), ("W2", ones(&[2, 4])), b2.clone()]),
            &["tensor W2 has shape [2, 4], expected [2, 3]"],
        ),
        (
            named([w1.clone(), ("b1", ones(&[4])), w2.clone(), b2.clone()]),
            &["tensor b1 has shape [4], expected [3]"],
        ),
        (
            named([
                ("W1", ones(&[2, 2])),
                ("b1", ones(&[2])),
                ("W2", ones(&[2, 2])),
                b2.clone(),
            ]),
            &[
                "the layout of weight W1 [2, 2]",
                "Orientation::OutIn",
                "Orientation::InOut",
            ],
        ),
        (
            named([("W1", ones(&[6])), b1.clone(), w2.clone(), b2.clone()]),
            &["tensor W1 has shape [6], expected a matrix"],
        ),
        (
            named([("W1", integers), b1.clone(), w2, b2]),
            &["tensor W1 is stored as I64; supported: F32, F16, BF16, F64; convert it"],
        ),
        (
            named([w1, b1]),
            &["contains 1 linear layers, but a feed-forward has 2; see `mlp`"],
        ),
    ];
    for (tensors, words) in cases {
        let (_folder, file) = plain(&tensors);
        let error = file.and_then(feed_forward).unwrap_err();
        assert_says(&error, words);
        assert_says(&error, &["mlp.safetensors"]);
        // A plain file has neither.
        let text = error.to_string();
        assert!(
            !text.contains("Strictness") && !text.contains("config.json"),
            "{text}"
        );
    }
}

#[test]
fn an_orientation_that_does_not_fit_is_refused_even_if_it_was_given() {
    let tensors = named([
        ("W1", ones(&[3, 2])),
        ("b1", ones(&[3])),
        ("W2", ones(&[2, 3])),
        ("b2", ones(&[2])),
    ]);
    let (_folder, file) = plain(&tensors);
    let file = file.unwrap();
    assert_eq!(file.orientation().unwrap(), Orientation::OutIn);
    let error = feed_forward(file.with_orientation(Orientation::InOut)).unwrap_err();
    assert_says(&error, &["tensor b1 has shape [3], expected [2]"]);
}

#[test]
fn a_plain_norm_is_one_row() {
    let with_norm = |weight: &[usize], bias: &[usize]| {
        named([
            ("fc1.weight", ones(&[3, 2])),
            ("scale", ones(weight)),
            ("shift", ones(bias)),
        ])
    };
    let norm = |tensors: &[(String, Tensor)]| {
        let (_folder, file) = plain(tensors);
        file.unwrap().layer_norm(1e-5, DType::F32, &CPU)
    };
    for shape in [&[2][..], &[1, 2]] {
        let norm = norm(&with_norm(shape, shape)).unwrap();
        assert_eq!(norm.weight().dims(), [2]);
    }
    for (weight, bias, words) in [
        (
            &[2, 2][..],
            &[2][..],
            "tensor scale has shape [2, 2], expected [2]",
        ),
        (&[2], &[3], "tensor shift has shape [3], expected [2]"),
    ] {
        assert_says(norm(&with_norm(weight, bias)).unwrap_err(), &[words]);
    }
    let error = norm(&named([("fc1.weight", ones(&[3, 2]))])).unwrap_err();
    assert_says(&error, &["contains no norm", "`PlainFile`"]);
}

#[test]
fn a_layer_without_inputs_gives_its_bias() {
    let weight = Tensor::zeros((3, 0), DType::F32, &CPU).unwrap();
    let linear = Linear::from_parts(weight, Some(ones(&[3]))).unwrap();
    let x = Tensor::zeros((2, 4, 0), DType::F32, &CPU).unwrap();
    let y = linear.forward(&x).unwrap();
    assert_eq!(y.dims(), [2, 4, 3]);
    assert!(
        bits(&y)
            .into_iter()
            .all(|value| f64::from_bits(value) == 1.0)
    );
}
