//! Files from `torch.save` and NumPy: they contain the same tensors as in PyTorch and NumPy, and the same models as in
//! safetensors.

use std::fs;
use std::path::Path;

use candle_blocks::{
    Activation, Checkpoint, PlainFile, Weights,
    candle_core::{DType, Device, Tensor},
    checkpoint::{files::TensorFiles, scheme::Orientation},
    model::ModelInput,
};

use crate::said::assert_says;
use crate::torch_file::{View, torch_file};
use crate::weights::{is_present, weights};

const CPU: Device = Device::Cpu;

/// Returns a tensor's bits, for any dtype.
fn bits(tensor: &Tensor) -> (DType, Vec<usize>, Vec<u8>) {
    let all = tensor.flatten_all().unwrap();
    let bytes = match tensor.dtype() {
        DType::U8 => all.to_vec1::<u8>().unwrap(),
        DType::U32 => bytemuck::cast_slice(&all.to_vec1::<u32>().unwrap()).to_vec(),
        DType::I16 => bytemuck::cast_slice(&all.to_vec1::<i16>().unwrap()).to_vec(),
        DType::I32 => bytemuck::cast_slice(&all.to_vec1::<i32>().unwrap()).to_vec(),
        DType::I64 => bytemuck::cast_slice(&all.to_vec1::<i64>().unwrap()).to_vec(),
        DType::F64 => bytemuck::cast_slice(&all.to_vec1::<f64>().unwrap()).to_vec(),
        DType::F32 => bytemuck::cast_slice(&all.to_vec1::<f32>().unwrap()).to_vec(),
        DType::F16 => bytemuck::cast_slice(&all.to_vec1::<half::f16>().unwrap()).to_vec(),
        DType::BF16 => bytemuck::cast_slice(&all.to_vec1::<half::bf16>().unwrap()).to_vec(),
        other => panic!("{other:?}"),
    };
    (tensor.dtype(), tensor.dims().to_vec(), bytes)
}

/// Asserts that files contain the same tensors as others, whole and by rows, and returns how many were read.
fn assert_same(found: &TensorFiles, expected: &TensorFiles) -> usize {
    let mut n_read = 0;
    for name in expected.names() {
        let info = expected.info(name).unwrap();
        let other = found.info(name).unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(
            (other.dtype, &other.shape, other.n_bytes),
            (info.dtype, &info.shape, info.n_bytes),
            "{name}"
        );
        let (Ok(one), other) = (expected.read(name), found.read(name)) else {
            // Neither has a type that candle lacks.
            assert!(found.read(name).is_err(), "{name}");
            continue;
        };
        assert_eq!(bits(&other.unwrap()), bits(&one), "{name}");
        n_read += 1;
        let Some(&n) = info.shape.first().filter(|&&n| n > 0) else {
            continue;
        };
        let rows = [n - 1..n, 0..n / 2, 0..n];
        let [one, other] = [expected, found].map(|files| files.read_rows(name, &rows).unwrap());
        assert_eq!(bits(&other), bits(&one), "rows of {name}");
    }
    n_read
}

#[test]
fn every_type_and_layout_has_pytorch_s_values() {
    if !is_present("pickles") {
        return;
    }
    let open = |name: &str| TensorFiles::open(weights("pickles").join(name)).unwrap();
    let (found, expected) = (open("views.pt"), open("views.safetensors"));
    assert_eq!(found.names().count(), 27);
    assert_eq!(expected.names().count(), 27);
    assert_eq!(assert_same(&found, &expected), 25);
}

#[test]
fn arrays_of_numpy_have_numpy_s_values() {
    if !is_present("pickles") {
        return;
    }
    let open = |name: &str| TensorFiles::open(weights("pickles").join(name)).unwrap();
    let expected = open("arrays.safetensors");
    assert_eq!(assert_same(&open("arrays.npz"), &expected), 4);
    assert_eq!(
        bits(&open("W2.npy").read("W2").unwrap()),
        bits(&expected.read("W2").unwrap())
    );
    let layers = ["arrays.npz", "arrays.safetensors"].map(|name| {
        let file = PlainFile::open(weights("pickles").join(name)).unwrap();
        assert_eq!(file.orientation().unwrap(), Orientation::InOut);
        let layer = file
            .feed_forward(Activation::Relu, DType::F32, &CPU)
            .unwrap();
        bits(
            &layer
                .forward(&Tensor::ones(4, DType::F32, &CPU).unwrap())
                .unwrap(),
        )
    });
    assert_eq!(layers[0], layers[1]);
}

/// Returns a folder with some files from a committed one.
fn folder_of(name: &str, is_wanted: fn(&str) -> bool) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(weights("pickles").join(name)).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        if is_wanted(name.to_str().unwrap()) {
            fs::copy(&path, folder.path().join(name)).unwrap();
        }
    }
    folder
}

/// Returns every result of the whole model, for some ids.
fn results(path: &Path) -> Vec<(DType, Vec<usize>, Vec<u8>)> {
    let checkpoint = Checkpoint::open(path).unwrap();
    let model = checkpoint.load(Weights::Dense(DType::F32, &CPU));
    let model = model.model().unwrap();
    let ids = Tensor::new(&[[1u32, 7, 3, 11], [4, 0, 9, 2]], &CPU).unwrap();
    let output = model.forward(&ModelInput::tokens(&ids)).unwrap();
    let all = [Some(output.last_hidden_state), output.logits];
    all.iter().flatten().map(bits).collect()
}

#[test]
fn a_model_of_pytorch_s_files_is_that_of_safetensors() {
    if !is_present("pickles") {
        return;
    }
    for (name, weights_of_torch) in [
        ("bert", "pytorch_model.bin"),
        ("llama", "pytorch_model.bin.index.json"),
    ] {
        let of_torch = folder_of(name, |file| !file.contains("safetensors"));
        let safetensors = folder_of(name, |file| !file.contains("pytorch_model"));
        let open = |folder: &tempfile::TempDir| TensorFiles::open(folder.path()).unwrap();
        let (found, expected) = (open(&of_torch), open(&safetensors));
        let n = expected.names().count();
        assert!(n > 10);
        assert_eq!(assert_same(&found, &expected), n, "{name}");
        assert!(found.path().ends_with(weights_of_torch));
        let expected = results(safetensors.path());
        assert_eq!(expected.len(), 2, "{name}");
        assert_eq!(results(of_torch.path()), expected, "{name}");
        assert_eq!(results(found.path()), expected, "{name}: the file itself");
        let report = Checkpoint::open(of_torch.path())
            .unwrap()
            .report()
            .to_string();
        println!("{report}");
        // With both, safetensors.
        let both = folder_of(name, |_| true);
        let both = TensorFiles::open(both.path()).unwrap();
        assert!(
            both.path().ends_with("model.safetensors"),
            "{:?}",
            both.path()
        );
    }
}

#[test]
fn a_pytorch_file_is_saved_as_safetensors() {
    if !is_present("pickles") {
        return;
    }
    let of_torch = folder_of("bert", |file| !file.contains("safetensors"));
    let expected = results(of_torch.path());
    let target = tempfile::tempdir().unwrap();
    let target = target.path().join("saved");
    let checkpoint = Checkpoint::open(of_torch.path()).unwrap();
    let unchanged: [(&str, Tensor); 0] = [];
    checkpoint.save(&target, unchanged).unwrap();
    assert!(target.join("model.safetensors").exists());
    assert_eq!(results(&target), expected);
}

/// Views that are not contiguous, or overlap other views of the same storage.
#[test]
fn views_of_one_storage_are_read_in_place() {
    let numbers: Vec<f32> = (0..24).map(|i| i as f32).collect();
    let views = [
        View {
            name: "all",
            first: 0,
            shape: &[24],
            strides: &[1],
        },
        View {
            name: "start",
            first: 0,
            shape: &[2],
            strides: &[1],
        },
        View {
            name: "swapped",
            first: 4,
            shape: &[3, 2, 2],
            strides: &[2, 1, 6],
        },
        View {
            name: "same",
            first: 7,
            shape: &[3, 2],
            strides: &[0, 1],
        },
        View {
            name: "empty",
            first: 24,
            shape: &[0, 9],
            strides: &[9, 1],
        },
    ];
    let bytes = torch_file(
        safetensors::Dtype::F32,
        &views,
        bytemuck::cast_slice(&numbers),
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("views.pth");
    fs::write(&path, bytes).unwrap();
    let files = TensorFiles::open(&path).unwrap();
    let read = |name: &str| {
        files
            .read(name)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1::<f32>()
            .unwrap()
    };
    assert_eq!(read("all"), numbers);
    assert_eq!(read("start"), [0.0, 1.0]);
    assert_eq!(
        read("swapped"),
        [4., 10., 5., 11., 6., 12., 7., 13., 8., 14., 9., 15.]
    );
    assert_eq!(read("same"), [7., 8., 7., 8., 7., 8.]);
    assert_eq!(files.read("empty").unwrap().dims(), [0, 9]);
}

#[test]
fn files_that_hold_more_than_tensors_are_refused_by_name() {
    if !is_present("pickles") {
        return;
    }
    for (name, words) in [
        (
            "legacy.bin",
            &["before PyTorch 1.6", "torch.save(torch.load("][..],
        ),
        (
            "wrapped.pt",
            &[
                "\"state_dict\"",
                "a dict",
                "torch.load(file)[\"state_dict\"]",
            ],
        ),
        ("namespace.pt", &["argparse.Namespace", "state_dict()"]),
        (
            "sparse.pt",
            &["torch._utils._rebuild_sparse_tensor", "state_dict()"],
        ),
        (
            "compressed.npz",
            &["\"W1.npy\"", "compressed", "numpy.savez"],
        ),
        ("object.npz", &["\"W1\"", "'|O'", "numpy.save"]),
    ] {
        let path = weights("pickles/refused").join(name);
        let error = TensorFiles::open(&path).unwrap_err();
        assert_says(&error, words);
        assert_says(&error, &[path.to_str().unwrap()]);
    }
}
