//! The contents of a saved checkpoint's directory, read by other programs.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use candle_blocks::candle_core::{Device, Tensor};
use safetensors::{Dtype, SafeTensors};

/// Dtype, shape and bytes of every tensor, read by the `safetensors` crate.
pub type Stored = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

pub fn stored(directory: &Path) -> Stored {
    let mut tensors = Stored::new();
    for path in files(directory) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            let bytes = fs::read(&path).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
                let content = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
                assert!(tensors.insert(name.to_string(), content).is_none());
            }
        }
    }
    assert!(!tensors.is_empty(), "{}", directory.display());
    tensors
}

/// Returns the names of the tensors that differ.
pub fn differing(one: &Stored, other: &Stored) -> Vec<String> {
    assert!(one.keys().eq(other.keys()), "other names");
    let differs = |name: &&String| one[*name] != other[*name];
    one.keys().filter(differs).cloned().collect()
}

pub fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

pub fn names(directory: &Path) -> Vec<String> {
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_string();
    files(directory).iter().map(name).collect()
}

/// Random values that every floating type holds exactly.
pub fn random(shape: &[usize]) -> Tensor {
    let values = Tensor::rand(-64f32, 64f32, shape, &Device::Cpu).unwrap();
    (values.round().unwrap() / 64.0).unwrap()
}
