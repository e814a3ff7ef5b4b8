//! Faults in a checkpoint's directory and in an input.

use std::{
    fs::{self, OpenOptions},
    path::Path,
};

use candle_blocks::candle_core::{DType, Device, Tensor};
use serde_json::{Map, Value};

use crate::scratch::{Scratch, Tensors};

impl Scratch {
    /// Sets keys in `config.json`; `null` removes a key.
    pub fn set_config(&self, keys: Value) {
        let text = fs::read_to_string(self.config()).unwrap();
        let mut config: Map<String, Value> = serde_json::from_str(&text).unwrap();
        config.extend(keys.as_object().unwrap().clone());
        config.retain(|_, value| !value.is_null());
        fs::write(self.config(), Value::Object(config).to_string()).unwrap();
    }

    /// Reduces the input to `hidden_states`, with this shape.
    pub fn hidden_states(&self, dims: &[usize]) {
        self.change_input(|tensors| {
            tensors.clear();
            let tensor = Tensor::ones(dims, DType::F32, &Device::Cpu).unwrap();
            tensors.insert("hidden_states".to_string(), tensor);
        });
    }
}

/// Changes a safetensors file's header and leaves the data unchanged.
pub fn change_header(path: &Path, change: impl FnOnce(&mut Map<String, Value>)) {
    let bytes = fs::read(path).unwrap();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header = serde_json::from_slice(&bytes[8..8 + n]).unwrap();
    change(&mut header);
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    fs::write(path, [&length, &header[..], &bytes[8 + n..]].concat()).unwrap();
}

/// Truncates a file, or extends it with zeros that take no space on disk.
pub fn set_len(path: &Path, len: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(len).unwrap();
}

/// Makes the weights' first eight bytes, the header's length, this number.
pub fn start_with(scratch: &Scratch, length: u64) {
    let mut bytes = fs::read(scratch.weights()).unwrap();
    bytes[..8].copy_from_slice(&length.to_le_bytes());
    fs::write(scratch.weights(), bytes).unwrap();
}

/// Replaces text in the index.
pub fn rewrite(scratch: &Scratch, from: &str, to: &str) {
    let text = fs::read_to_string(scratch.index()).unwrap();
    assert!(text.contains(from));
    fs::write(scratch.index(), text.replace(from, to)).unwrap();
}

pub fn rename(tensors: &mut Tensors, from: &str, to: &str) {
    let tensor = tensors.remove(from).unwrap();
    tensors.insert(to.to_string(), tensor);
}

pub fn copy(tensors: &mut Tensors, from: &str, to: &str) {
    let tensor = tensors[from].clone();
    tensors.insert(to.to_string(), tensor);
}

pub fn convert(tensors: &mut Tensors, name: &str, dtype: DType) {
    let tensor = tensors[name].to_dtype(dtype).unwrap();
    tensors.insert(name.to_string(), tensor);
}

pub fn mask(tensors: &mut Tensors, rows: &[&[i64]]) {
    let rows: Vec<Vec<i64>> = rows.iter().map(|row| row.to_vec()).collect();
    let mask = Tensor::new(rows, &Device::Cpu).unwrap();
    tensors.insert("attention_mask".to_string(), mask);
}
