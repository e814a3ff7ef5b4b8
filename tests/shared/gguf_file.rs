//! GGUF files that a test writes, or whose keys it changes.
#![allow(dead_code, reason = "each test program uses some of it")]

use std::fs;
use std::path::Path;

/// Returns the bytes for a key's value, its type first.
pub fn number(number: f32) -> Vec<u8> {
    [6u32.to_le_bytes(), number.to_le_bytes()].concat()
}

pub fn whole(number: u32) -> Vec<u8> {
    [4u32.to_le_bytes(), number.to_le_bytes()].concat()
}

pub fn flag(flag: bool) -> Vec<u8> {
    [&7u32.to_le_bytes()[..], &[u8::from(flag)]].concat()
}

pub fn text(text: &str) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &string(text)].concat()
}

pub fn wholes(numbers: &[u32]) -> Vec<u8> {
    let items = numbers.iter().flat_map(|number| number.to_le_bytes());
    array(4, numbers.len(), items)
}

pub fn numbers(numbers: &[f32]) -> Vec<u8> {
    let items = numbers.iter().flat_map(|number| number.to_le_bytes());
    array(6, numbers.len(), items)
}

pub fn texts(texts: &[impl AsRef<str>]) -> Vec<u8> {
    let items = texts.iter().flat_map(|text| string(text.as_ref()));
    array(8, texts.len(), items)
}

fn array(kind: u32, n: usize, items: impl Iterator<Item = u8>) -> Vec<u8> {
    let head = [9u32.to_le_bytes(), kind.to_le_bytes()].concat();
    [head, (n as u64).to_le_bytes().to_vec(), items.collect()].concat()
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// A file to be written.
pub struct GgufFile {
    keys: Vec<(String, Vec<u8>)>,
    tensors: Vec<(String, Vec<u64>, u32, Vec<u8>)>,
}

impl GgufFile {
    pub fn new(architecture: &str) -> Self {
        Self {
            keys: vec![("general.architecture".to_string(), text(architecture))],
            tensors: vec![],
        }
    }

    /// Adds a key with a value.
    pub fn key(mut self, key: &str, value: Vec<u8>) -> Self {
        self.keys.push((key.to_string(), value));
        self
    }

    /// Adds a tensor whose type has this id; its shape is outermost first.
    pub fn tensor(mut self, name: &str, shape: &[usize], kind: u32, bytes: Vec<u8>) -> Self {
        let dims = shape.iter().rev().map(|&size| size as u64).collect();
        self.tensors.push((name.to_string(), dims, kind, bytes));
        self
    }

    pub fn write(&self, path: &Path) {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        for n in [self.tensors.len(), self.keys.len()] {
            bytes.extend((n as u64).to_le_bytes());
        }
        for (key, value) in &self.keys {
            bytes.extend([&string(key)[..], value].concat());
        }
        let mut offset = 0u64;
        for (name, dims, kind, data) in &self.tensors {
            bytes.extend(string(name));
            bytes.extend((dims.len() as u32).to_le_bytes());
            bytes.extend(dims.iter().flat_map(|size| size.to_le_bytes()));
            bytes.extend(kind.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            offset = (offset + data.len() as u64).next_multiple_of(ALIGNMENT);
        }
        for (.., data) in &self.tensors {
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
            bytes.extend(data);
        }
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT as usize), 0);
        fs::write(path, bytes).unwrap();
    }
}

const ALIGNMENT: u64 = 32;

/// Returns a file's bytes without a key: it has a name that says nothing.
pub fn without_key(mut bytes: Vec<u8>, key: &str) -> Vec<u8> {
    let old = string(key);
    let at = bytes
        .windows(old.len())
        .position(|found| found == old)
        .unwrap();
    let unused = format!("general.{}", "x".repeat(key.len() - 8));
    bytes[at..at + old.len()].copy_from_slice(&string(&unused));
    bytes
}

/// Returns a file's bytes with additional or replaced keys.
pub fn with_keys(mut bytes: Vec<u8>, keys: &[(&str, Vec<u8>)]) -> Vec<u8> {
    const HEAD: usize = 24;
    let mut added = vec![];
    for (i, (key, value)) in keys.iter().enumerate() {
        let old = string(key);
        if let Some(at) = bytes.windows(old.len()).position(|found| found == old) {
            // Under a name that says nothing.
            let unused = format!("general.{i:x>0$}", key.len() - 8);
            bytes[at..at + old.len()].copy_from_slice(&string(&unused));
        }
        added.extend([string(key), value.clone()].concat());
    }
    // Tensors begin at multiples of 32 bytes, and stay there.
    let filler = [string("general.description"), text("")].concat();
    let length = added.len() + filler.len();
    let length = length.next_multiple_of(ALIGNMENT as usize) - length;
    added.extend([string("general.description"), text(&" ".repeat(length))].concat());
    let n = u64::from_le_bytes(bytes[16..HEAD].try_into().unwrap()) + keys.len() as u64 + 1;
    bytes[16..HEAD].copy_from_slice(&n.to_le_bytes());
    bytes.splice(HEAD..HEAD, added);
    bytes
}
