//! Results that PyTorch or NumPy computed, and the comparison with ours.

use std::collections::HashMap;
use std::path::Path;

use candle_blocks::{
    candle_core::{Device, Tensor, safetensors},
    verify::{Comparison, Expected, compare},
};

use crate::{device::device, weights::weights};

/// Reference values that PyTorch or NumPy computed.
pub struct Reference {
    tensors: HashMap<String, Tensor>,
}

impl Reference {
    /// Opens `weights/reference/<name>.safetensors`.
    pub fn open(name: &str) -> Self {
        Self::at(&weights(&format!("reference/{name}.safetensors")))
    }

    /// The values in a file elsewhere.
    pub fn at(path: &Path) -> Self {
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
        compare(name, ours, &self.expected(name), None)
    }

    /// PyTorch's `name`, with its float64 result.
    pub fn expected(&self, name: &str) -> Expected {
        let exact = self.tensors.get(&format!("{name}.f64")).cloned();
        Expected::new(self.on_cpu(name), exact).unwrap()
    }

    /// Holds `ours` against PyTorch's `name` by the ratio rule.
    #[track_caller]
    pub fn check(&self, name: &str, ours: &Tensor) {
        assert_passed(&[self.compare(name, ours)]);
    }

    pub fn on_cpu(&self, name: &str) -> Tensor {
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
