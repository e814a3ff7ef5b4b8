//! What several test files share: the committed weights, the device under test, the comparer.
#![allow(dead_code)] // each test binary uses a part

pub mod committed;
pub mod random;

use std::{
    collections::HashMap,
    fmt::Display,
    io::Write,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use candle_blocks::{
    Checkpoint, Parameters,
    candle_core::{self, DType, Device, Tensor, Var, safetensors},
    verify::{Comparison, Expected, compare},
};

/// Names the device under test.
pub const DEVICE_VARIABLE: &str = "CANDLE_BLOCKS_TEST_DEVICE";

/// Every level of instructions, as `CANDLE_BLOCKS_ISA` takes it.
pub const LEVELS: [&str; 6] = [
    "portable",
    "neon",
    "avx2",
    "avx512",
    "avx512_vnni",
    "avx512_bf16",
];

/// A path under `weights/`.
pub fn weights(local: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("weights")
        .join(local)
}

/// Whether a path under `weights/` can be used. Not if the published package leaves it out, which is
/// said then; in a clone nothing may be missing, and who uses it will find out.
pub fn is_present(local: &str) -> bool {
    // Cargo writes this file when it packs a crate.
    let is_package = weights("../Cargo.toml.orig").exists();
    let is_present = weights(local).exists() || !is_package;
    if !is_present {
        left_out(&format!(
            "weights/{local} is not in the published package; see weights/README.md"
        ));
    }
    is_present
}

/// Of checkpoints under `weights/`, all that [`is_present`].
pub fn present<T>(checkpoints: impl IntoIterator<Item = T>, name: fn(&T) -> &str) -> Vec<T> {
    let checkpoints = checkpoints.into_iter();
    checkpoints.filter(|c| is_present(name(c))).collect()
}

/// Says what a test did not do; past the harness, which shows a passed test's output to nobody.
pub fn left_out(what: &str) {
    let line = format!("LEFT OUT: {what}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// The device that `CANDLE_BLOCKS_TEST_DEVICE` names: `cpu` (default), `cuda` or `metal`.
pub fn device() -> Device {
    // One for all: candle takes two handles of one GPU for two devices.
    static DEVICE: OnceLock<Device> = OnceLock::new();
    let open = || {
        let name = std::env::var(DEVICE_VARIABLE).unwrap_or_else(|_| "cpu".to_string());
        let device = match name.as_str() {
            "cpu" => Ok(Device::Cpu),
            "cuda" => Device::new_cuda(0),
            "metal" => Device::new_metal(0),
            _ => panic!("{DEVICE_VARIABLE}={name}: expected cpu, cuda or metal"),
        };
        device.unwrap_or_else(|error| panic!("{DEVICE_VARIABLE}={name}: {error}"))
    };
    DEVICE.get_or_init(open).clone()
}

/// Whether the device under test computes in f64. Where it does not, says that `what` is left out.
pub fn has_f64(what: &str) -> bool {
    let has_f64 = !device().is_metal();
    if !has_f64 {
        left_out(&format!("{what}: the device has no f64"));
    }
    has_f64
}

/// The given types, without f64 where the device under test has none, and says so.
pub fn computable(dtypes: impl IntoIterator<Item = DType>, what: &str) -> Vec<DType> {
    let is_computable = |&dtype: &DType| dtype != DType::F64 || has_f64(what);
    dtypes.into_iter().filter(is_computable).collect()
}

/// Reference values that PyTorch or NumPy computed.
pub struct Reference {
    tensors: HashMap<String, Tensor>,
}

impl Reference {
    /// Opens `weights/reference/<name>.safetensors`.
    pub fn open(name: &str) -> Self {
        let path = weights(&format!("reference/{name}.safetensors"));
        Self {
            tensors: safetensors::load(path, &Device::Cpu).unwrap(),
        }
    }

    /// A tensor on the device under test.
    pub fn get(&self, name: &str) -> Tensor {
        self.on_cpu(name).to_device(&device()).unwrap()
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.tensors.keys().cloned().collect();
        names.sort();
        names
    }

    /// Ours beside PyTorch's `name`, by the ratio rule.
    pub fn compare(&self, name: &str, ours: &Tensor) -> Comparison {
        let exact = self.tensors.get(&format!("{name}.f64")).cloned();
        let expected = Expected::new(self.on_cpu(name), exact).unwrap();
        compare(name, ours, &expected, None)
    }

    /// Holds `ours` against PyTorch's `name` by the ratio rule.
    #[track_caller]
    pub fn check(&self, name: &str, ours: &Tensor) {
        assert_passed(&[self.compare(name, ours)]);
    }

    fn on_cpu(&self, name: &str) -> Tensor {
        self.tensors
            .get(name)
            .unwrap_or_else(|| panic!("the reference has no {name}"))
            .clone()
    }
}

/// Demands that all passed, and shows every one that did not.
#[track_caller]
pub fn assert_passed(comparisons: &[Comparison]) {
    let line = |c: &Comparison| {
        format!(
            "{}: {:?}, {} of {} elements beyond; error {:.1e}, PyTorch's {:.1e}, {:.2} of what is allowed; {:?}",
            c.name,
            c.outcome,
            c.n_mismatched,
            c.n_compared,
            c.max_abs,
            c.tolerance.and_then(|t| t.torch_error).unwrap_or(f64::NAN),
            c.share_used,
            c.worst,
        )
    };
    let failed: Vec<String> = comparisons
        .iter()
        .filter(|c| !c.passed())
        .map(line)
        .collect();
    assert!(!comparisons.is_empty(), "nothing was compared");
    assert!(
        failed.is_empty(),
        "{} of {} differ:\n{}",
        failed.len(),
        comparisons.len(),
        failed.join("\n")
    );
}

/// `f(inputs)` and the gradient of every input under the cotangent `grad_output`.
pub fn value_and_gradients(
    inputs: &[Tensor],
    grad_output: &Tensor,
    f: impl Fn(&[Tensor]) -> candle_core::Result<Tensor>,
) -> (Tensor, Vec<Tensor>) {
    let vars: Vec<Var> = inputs
        .iter()
        .map(|t| Var::from_tensor(t).unwrap())
        .collect();
    let tracked: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
    let y = f(&tracked).unwrap();
    let loss = (&y * grad_output).unwrap().sum_all().unwrap();
    let gradients = loss.backward().unwrap();
    let gradient = |(i, var): (usize, &Var)| {
        let gradient = gradients.get(var).cloned();
        gradient.unwrap_or_else(|| panic!("input {i} got no gradient"))
    };
    let gradients = vars.iter().enumerate().map(gradient).collect();
    (y.detach(), gradients)
}

/// The elements of a tensor of any type, device and layout.
pub fn numbers(tensor: &Tensor) -> Vec<f64> {
    let values = tensor.to_device(&Device::Cpu).unwrap();
    let values = values.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
    values.to_vec1().unwrap()
}

/// The bits of a tensor's elements as f64.
pub fn bits(tensor: &Tensor) -> Vec<u64> {
    numbers(tensor).into_iter().map(f64::to_bits).collect()
}

/// The parameters of a checkpoint's stack, as training gets them.
pub fn trained(checkpoint: &Checkpoint, dtype: DType) -> Parameters {
    let loader = checkpoint.trainable(dtype, &device()).unwrap();
    loader.stack().unwrap();
    loader.parameters()
}

/// What an error says.
#[track_caller]
pub fn message<T, E: Display>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        // With its causes, where Display leaves them to the alternate form.
        Err(error) => format!("{error:#}"),
    }
}

/// Demands that a text has all of these words.
#[track_caller]
pub fn assert_says(text: impl Display, words: &[&str]) {
    let text = text.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
}
