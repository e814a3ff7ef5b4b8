//! What several test files share: the committed weights, the device under test, the comparer.
#![allow(dead_code)] // each test binary uses a part

use std::{collections::HashMap, path::PathBuf};

use candle_blocks::{
    candle_core::{DType, Device, Tensor, safetensors},
    verify::{Expected, compare},
};

/// A path under `weights/`.
pub fn weights(local: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("weights")
        .join(local)
}

/// The device that `CANDLE_BLOCKS_TEST_DEVICE` names: `cpu` (default), `cuda` or `metal`.
pub fn device() -> Device {
    let name = std::env::var("CANDLE_BLOCKS_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_string());
    match name.as_str() {
        "cpu" => Device::Cpu,
        "cuda" => Device::new_cuda(0).expect("CANDLE_BLOCKS_TEST_DEVICE=cuda"),
        "metal" => Device::new_metal(0).expect("CANDLE_BLOCKS_TEST_DEVICE=metal"),
        other => panic!("CANDLE_BLOCKS_TEST_DEVICE={other}: expected cpu, cuda or metal"),
    }
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

    pub fn get(&self, name: &str) -> Tensor {
        self.tensors
            .get(name)
            .unwrap_or_else(|| panic!("the reference has no {name}"))
            .clone()
    }

    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.tensors.keys().cloned().collect();
        names.sort();
        names
    }

    /// Holds `ours` against PyTorch's `name` by the ratio rule.
    #[track_caller]
    pub fn check(&self, name: &str, ours: &Tensor) {
        let exact = self.tensors.get(&format!("{name}.f64")).cloned();
        let expected = Expected::new(self.get(name), exact).unwrap();
        let comparison = compare(name, ours, &expected, None);
        assert!(comparison.passed(), "{comparison:#?}");
    }
}

/// The bits of an f64 tensor.
pub fn bits(tensor: &Tensor) -> Vec<u64> {
    let values = tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap();
    values
        .to_vec1::<f64>()
        .unwrap()
        .into_iter()
        .map(f64::to_bits)
        .collect()
}
