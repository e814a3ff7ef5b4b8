//! Random results that PyTorch might have computed, and fixtures with them, to plant faults in.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_blocks::verify::Expected;
use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{Dtype, TensorView};

/// A tensor as PyTorch would have it: exact, and in f32 with an error of a few ulp.
pub struct Case {
    pub dims: Vec<usize>,
    pub exact: Vec<f64>,
    pub expected: Expected,
    seed: u64,
    error: f64,
}

impl Case {
    /// Makes normal values times `scale`, with an error of about one ulp.
    pub fn new(dims: &[usize], scale: f64, seed: u64) -> Self {
        Self::with_error(dims, scale, seed, 1.0)
    }

    /// Makes normal values with an error of `ulps` times `scale`.
    pub fn with_error(dims: &[usize], scale: f64, seed: u64, ulps: f64) -> Self {
        let n = dims.iter().product();
        let exact = normals(seed, n).into_iter().map(|v| v * scale).collect();
        Self::from_exact(dims, exact, seed, ulps * scale)
    }

    /// Takes given values, with an error of `error` times f32's epsilon.
    pub fn from_exact(dims: &[usize], exact: Vec<f64>, seed: u64, error: f64) -> Self {
        let torch = with_noise(&exact, seed.wrapping_add(1), error);
        let value = Tensor::from_vec(torch, dims, &Device::Cpu).unwrap();
        let twin = Tensor::from_vec(exact.clone(), dims, &Device::Cpu).unwrap();
        Self {
            dims: dims.to_vec(),
            exact,
            expected: Expected::new(value, Some(twin)).unwrap(),
            seed,
            error,
        }
    }

    /// PyTorch's f32 values.
    pub fn torch(&self) -> Vec<f32> {
        let value = self.expected.value();
        value.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// Returns a good result: as far from the truth as PyTorch's, in other directions.
    pub fn ours(&self) -> Vec<f32> {
        with_noise(&self.exact, self.seed.wrapping_add(2), self.error)
    }

    pub fn tensor(&self, values: &[f32]) -> Tensor {
        Tensor::from_slice(values, self.dims.as_slice(), &Device::Cpu).unwrap()
    }

    pub fn largest(&self) -> f64 {
        self.exact.iter().fold(0.0, |m, v| m.max(v.abs()))
    }
}

fn with_noise(exact: &[f64], seed: u64, error: f64) -> Vec<f32> {
    // Uniform: with normal noise one side's worst is at times more than twice the other's.
    let noise = uniforms(seed, exact.len());
    let add = |(v, u): (&f64, f64)| (v + (2.0 * u - 1.0) * error * f64::from(f32::EPSILON)) as f32;
    exact.iter().zip(noise).map(add).collect()
}

/// Returns standard normal values (Box and Muller 1958).
pub fn normals(seed: u64, n: usize) -> Vec<f64> {
    let uniforms = uniforms(seed, 2 * n);
    let pair = |u: &[f64]| (-2.0 * (1.0 - u[0]).ln()).sqrt() * (std::f64::consts::TAU * u[1]).cos();
    uniforms.chunks(2).map(pair).collect()
}

/// Returns uniform values in `[0, 1)` (SplitMix64, Steele et al. 2014).
fn uniforms(seed: u64, n: usize) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0xD134_2543_DE82_EF95);
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    };
    (0..n).map(|_| next()).collect()
}

/// A fixture file in the making.
pub struct Draft {
    tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
    metadata: Option<HashMap<String, String>>,
    dir: tempfile::TempDir,
}

impl Draft {
    /// Nothing in it yet.
    pub fn empty() -> Self {
        Self {
            tensors: Vec::new(),
            metadata: None,
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// Makes a draft with only `hidden_states` in the given shape.
    pub fn with_hidden_states(dims: &[usize]) -> Self {
        Self::empty().f32("hidden_states", dims, 1)
    }

    pub fn raw(mut self, name: &str, dtype: Dtype, dims: &[usize], bytes: Vec<u8>) -> Self {
        self.tensors
            .push((name.to_string(), dtype, dims.to_vec(), bytes));
        self
    }

    pub fn f32(self, name: &str, dims: &[usize], seed: u64) -> Self {
        let values = normals(seed, dims.iter().product());
        let bytes = values.iter().flat_map(|&v| (v as f32).to_le_bytes());
        self.raw(name, Dtype::F32, dims, bytes.collect())
    }

    pub fn i64(self, name: &str, dims: &[usize], values: &[i64]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.raw(name, Dtype::I64, dims, bytes)
    }

    pub fn f64(self, name: &str, dims: &[usize], values: &[f64]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.raw(name, Dtype::F64, dims, bytes)
    }

    /// A result with its twin.
    pub fn case(self, name: &str, case: &Case) -> Self {
        let bytes = case.torch().iter().flat_map(|v| v.to_le_bytes()).collect();
        self.raw(name, Dtype::F32, &case.dims, bytes).f64(
            &format!("{name}.f64"),
            &case.dims,
            &case.exact,
        )
    }

    pub fn metadata(mut self, key: &str, value: &str) -> Self {
        self.metadata
            .get_or_insert_default()
            .insert(key.to_string(), value.to_string());
        self
    }

    /// Writes the file; it lives as long as the draft.
    pub fn write(&self) -> PathBuf {
        let path = self.path();
        let views = self.tensors.iter().map(|(name, dtype, dims, bytes)| {
            let view = TensorView::new(*dtype, dims.clone(), bytes).unwrap();
            (name.as_str(), view)
        });
        safetensors::serialize_to_file(views, self.metadata.clone(), &path).unwrap();
        path
    }

    /// Replaces a file's bytes.
    pub fn write_bytes(&self, bytes: &[u8]) -> PathBuf {
        // ext4 waits for the disk where a file is cut to be written again; not where it is new.
        let _ = std::fs::remove_file(self.path());
        std::fs::write(self.path(), bytes).unwrap();
        self.path()
    }

    pub fn path(&self) -> PathBuf {
        Path::join(self.dir.path(), "block.fixture.safetensors")
    }
}

/// A tensor's values, whatever its type.
pub fn values(tensor: &Tensor) -> Vec<f64> {
    let flat = tensor.flatten_all().unwrap().to_dtype(DType::F64).unwrap();
    flat.to_vec1().unwrap()
}

/// `[batch, seq, d_model]` in [`good_run`].
pub const DIMS: [usize; 3] = [2, 3, 4];

/// Returns a fixture with `n_layers` blocks, and a good run.
pub fn good_run(n_layers: usize) -> (Draft, HashMap<String, Tensor>) {
    let mut draft = Draft::with_hidden_states(&DIMS);
    let mut produced = HashMap::new();
    // Written last block first: the order must come from the names.
    for layer in (0..n_layers).rev() {
        for (i, point) in ["output", "feed_forward.output", "feed_forward.input"]
            .iter()
            .enumerate()
        {
            let name = format!("layers.{layer}.{point}");
            let case = Case::new(&DIMS, 1.0, (10 * layer + i) as u64);
            draft = draft.case(&name, &case);
            produced.insert(name, case.tensor(&case.ours()));
        }
    }
    (draft, produced)
}
