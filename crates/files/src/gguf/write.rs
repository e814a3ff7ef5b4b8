//! Writes a GGUF file: keys, then each tensor's location, then the tensors.
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::gguf::MAGIC;
use crate::write::write_whole;
use candle_blocks_base::{Error, Result};
use candle_blocks_kernels::storage::BlockKind;

/// Tensors begin at multiples of this many bytes, the default without `general.alignment`.
const ALIGNMENT: usize = 32;

/// A tensor that a file will contain.
#[derive(Clone)]
#[doc(hidden)]
pub struct TensorEntry {
    pub name: String,
    pub kind: BlockKind,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
}

impl TensorEntry {
    /// Returns how many elements there are.
    pub fn n(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn n_bytes(&self) -> usize {
        let (size, bytes) = self.kind.block();
        self.n() / size * bytes
    }
}

/// Writes a file whose tensors `content` computes one at a time. The file gets its name only when it is complete.
#[doc(hidden)]
pub fn write(
    path: &Path,
    keys: &BTreeMap<String, Value>,
    entries: &[TensorEntry],
    mut content: impl FnMut(&TensorEntry) -> Result<Vec<u8>>,
) -> Result<()> {
    let failed = |source| Error::io(path, "write", source);
    let header = header(keys, entries);
    write_whole(path, |out| {
        out.write_all(&header).map_err(failed)?;
        for entry in entries {
            let mut bytes = content(entry)?;
            debug_assert_eq!(bytes.len(), entry.n_bytes());
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
            out.write_all(&bytes).map_err(failed)?;
        }
        Ok(())
    })
}

fn header(keys: &BTreeMap<String, Value>, entries: &[TensorEntry]) -> Vec<u8> {
    let mut header = MAGIC.to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((entries.len() as u64).to_le_bytes());
    header.extend((keys.len() as u64).to_le_bytes());
    // The architecture comes first, as in other programs' files.
    let (first, others): (Vec<_>, Vec<_>) = keys
        .iter()
        .partition(|(key, _)| *key == "general.architecture");
    for (key, value) in first.into_iter().chain(others) {
        text(&mut header, key);
        number_of_value(&mut header, value);
        write_value(&mut header, value);
    }
    let mut offset = 0;
    for entry in entries {
        text(&mut header, &entry.name);
        header.extend((entry.shape.len() as u32).to_le_bytes());
        for &dim in entry.shape.iter().rev() {
            header.extend((dim as u64).to_le_bytes());
        }
        header.extend(entry.kind.number().to_le_bytes());
        header.extend((offset as u64).to_le_bytes());
        offset += entry.n_bytes().next_multiple_of(ALIGNMENT);
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
    header
}

fn text(header: &mut Vec<u8>, text: &str) {
    header.extend((text.len() as u64).to_le_bytes());
    header.extend(text.as_bytes());
}

/// Writes a number: integers with 32 bits, all others as f32, as llama.cpp reads them.
fn number_of_value(header: &mut Vec<u8>, value: &Value) {
    let number: u32 = match value {
        Value::Bool(_) => 7,
        Value::String(_) => 8,
        Value::Array(items) => {
            header.extend(9u32.to_le_bytes());
            return number_of_value(header, items.first().unwrap_or(&Value::Bool(false)));
        }
        value if value.is_u64() => 4,
        _ => 6,
    };
    header.extend(number.to_le_bytes());
}

fn write_value(header: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Bool(is_set) => header.push(u8::from(*is_set)),
        Value::String(content) => text(header, content),
        Value::Array(items) => {
            header.extend((items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| write_value(header, item));
        }
        value => match value.as_u64() {
            Some(size) => header.extend((size as u32).to_le_bytes()),
            None => header.extend((value.as_f64().unwrap_or(0.0) as f32).to_le_bytes()),
        },
    }
}
