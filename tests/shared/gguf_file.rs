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
        let keys = self.keys.iter();
        let keys = keys.flat_map(|(key, value)| [&string(key)[..], value].concat());
        let keys: Vec<u8> = keys.collect();
        fs::write(path, self.bytes(&keys, self.keys.len())).unwrap();
    }

    /// Returns the file's bytes with these keys.
    fn bytes(&self, keys: &[u8], n_keys: usize) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        for n in [self.tensors.len(), n_keys] {
            bytes.extend((n as u64).to_le_bytes());
        }
        bytes.extend(keys);
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
        bytes
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

/// A tensor in a file.
#[derive(Clone)]
pub struct StoredTensor {
    pub name: String,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// F32 or F16, by ggml's id.
    pub kind: u32,
    pub bytes: Vec<u8>,
}

impl StoredTensor {
    /// Returns the tensor's bytes in a range of its rows.
    pub fn rows(&self, rows: std::ops::Range<usize>) -> Vec<u8> {
        let row = self.bytes.len() / self.shape[0];
        self.bytes[rows.start * row..rows.end * row].to_vec()
    }
}

/// Returns a file's bytes with changed tensors, which are all F32 or F16.
pub fn with_tensors(bytes: &[u8], change: impl FnOnce(&mut Vec<StoredTensor>)) -> Vec<u8> {
    let mut reader = Reader { bytes, at: 8 };
    let (n_tensors, n_keys) = (reader.size(), reader.size());
    let keys = reader.at;
    for _ in 0..n_keys {
        let _ = reader.text();
        let kind = reader.id();
        reader.skip(kind);
    }
    let keys = &bytes[keys..reader.at];
    let stored: Vec<_> = (0..n_tensors)
        .map(|_| {
            let name = reader.text();
            let n_dimensions = reader.id();
            let mut shape: Vec<usize> = (0..n_dimensions).map(|_| reader.size()).collect();
            shape.reverse();
            (name, shape, reader.id(), reader.size())
        })
        .collect();
    let data = reader.at.next_multiple_of(ALIGNMENT as usize);
    let tensor = |(name, shape, kind, offset): (String, Vec<usize>, u32, usize)| {
        let width = [4, 2][kind as usize];
        let start = data + offset;
        let n: usize = shape.iter().product();
        let bytes = bytes[start..start + n * width].to_vec();
        StoredTensor {
            name,
            shape,
            kind,
            bytes,
        }
    };
    let mut tensors: Vec<_> = stored.into_iter().map(tensor).collect();
    change(&mut tensors);
    let mut file = GgufFile {
        keys: vec![],
        tensors: vec![],
    };
    for tensor in tensors {
        file = file.tensor(&tensor.name, &tensor.shape, tensor.kind, tensor.bytes);
    }
    file.bytes(keys, n_keys)
}

struct Reader<'b> {
    bytes: &'b [u8],
    at: usize,
}

impl Reader<'_> {
    fn taken(&mut self, n: usize) -> &[u8] {
        self.at += n;
        &self.bytes[self.at - n..self.at]
    }

    fn id(&mut self) -> u32 {
        u32::from_le_bytes(self.taken(4).try_into().unwrap())
    }

    fn size(&mut self) -> usize {
        u64::from_le_bytes(self.taken(8).try_into().unwrap()) as usize
    }

    fn text(&mut self) -> String {
        let n = self.size();
        String::from_utf8(self.taken(n).to_vec()).unwrap()
    }

    fn skip(&mut self, kind: u32) {
        match kind {
            8 => drop(self.text()),
            9 => {
                let kind = self.id();
                for _ in 0..self.size() {
                    self.skip(kind);
                }
            }
            kind => self.at += [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8][kind as usize],
        }
    }
}
