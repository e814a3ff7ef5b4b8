//! The header of a GGUF file: keys with values, then each tensor's location and type.
//! <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>
//!
//! Files are not trusted, as with safetensors: a length is only used if the file is long enough for it.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use serde_json::Value;

use crate::bytes::positioned::PositionedFile;
use candle_blocks_base::{Error, Result};
use candle_blocks_kernels::storage::{BlockKind, name_of_unread};

mod arrays;
mod parts;
mod stops;
#[doc(hidden)]
pub mod vocabulary;
#[doc(hidden)]
pub mod write;

use arrays::ArrayPlace;
pub(crate) use parts::{is_later_part, parts, together};

#[doc(hidden)]
pub const MAGIC: &[u8; 4] = b"GGUF";
/// The length limit for strings. Keys have at most 65,535 bytes; only chat templates are longer.
const MAX_TEXT_BYTES: u64 = 10_000_000;
/// Value types.
const TEXT: u32 = 8;
const ARRAY: u32 = 9;
/// The largest array that is kept. Arrays with a value for each layer are smaller. Tokenizer arrays are larger, and are not
/// kept.
const MAX_KEPT_ITEMS: u64 = 4096;

/// A file's keys and tensors.
#[derive(Debug)]
#[doc(hidden)]
pub struct Gguf {
    /// Scalars, strings, and short arrays; `null` for every other key.
    pub metadata: BTreeMap<String, Value>,
    /// Locations of arrays that were not kept.
    arrays: BTreeMap<String, ArrayPlace>,
    pub tensors: Vec<GgufTensor>,
}

impl Gguf {
    /// Returns whether a tensor has this name.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.iter().any(|tensor| tensor.name == name)
    }
}

#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct GgufTensor {
    pub name: String,
    pub kind: BlockKind,
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    /// Offset from the file's start.
    pub(super) offset: u64,
    pub(super) n_bytes: usize,
}

/// Returns whether the file at a path begins with GGUF's magic bytes.
#[doc(hidden)]
pub fn is_gguf(path: &Path) -> bool {
    PositionedFile::open(path.to_path_buf()).is_ok_and(|file| begins_so(&file))
}

/// Returns whether a file may be a model, by its keys. A damaged file may be one, so that opening it explains the damage.
pub(super) fn may_be_model(path: &Path) -> bool {
    let file = PositionedFile::open(path.to_path_buf());
    let read = file.and_then(|file| read(&file));
    read.map_or(true, |read| other_than_model(&read.metadata).is_none())
}

/// Returns what a file contains instead of a model, by its keys.
#[doc(hidden)]
pub fn other_than_model(metadata: &BTreeMap<String, Value>) -> Option<&'static str> {
    let text = |key: &str| metadata.get(key).and_then(Value::as_str);
    let architecture = text("general.architecture").unwrap_or_default();
    match (text("general.type").unwrap_or_default(), architecture) {
        ("adapter", _) => Some("an adapter, which changes a model"),
        _ if metadata.keys().any(|key| key.starts_with("adapter.")) => {
            Some("an adapter, which changes a model")
        }
        ("mmproj", _) | (_, "clip") => Some("the image or audio encoder for a model"),
        ("vocab", _) => Some("words alone"),
        ("imatrix", _) | (_, "imatrix") => Some("the importance of weights, for quantization"),
        _ => None,
    }
}

/// Returns whether a file begins with GGUF's magic bytes.
pub(super) fn begins_so(file: &PositionedFile) -> bool {
    let mut start: Vec<u8> = Vec::with_capacity(MAGIC.len());
    file.len() >= MAGIC.len() as u64
        && file.append(&mut start, MAGIC.len(), 0).is_ok()
        && start == MAGIC
}

/// Reads and checks a file's header.
pub(super) fn read(file: &PositionedFile) -> Result<Gguf> {
    let mut cursor = Cursor::at(file, MAGIC.len() as u64);
    let version = cursor.u32()?;
    if !matches!(version, 2 | 3) {
        let reason = match version.swap_bytes() {
            2 | 3 => "it is a big-endian GGUF file; convert it for this computer".to_string(),
            _ => format!(
                "it is GGUF version {version}, but only 2 and 3 are supported; convert the model again"
            ),
        };
        return Err(cursor.error(reason));
    }
    let (n_tensors, n_keys) = (cursor.u64()?, cursor.u64()?);
    let mut metadata = BTreeMap::new();
    let mut arrays = BTreeMap::new();
    for _ in 0..n_keys {
        let key = cursor.text()?;
        let kind = cursor.u32()?;
        let place = cursor.at;
        let value = cursor.value(&key, kind)?;
        if kind == ARRAY && value.is_null() {
            arrays.insert(key.clone(), ArrayPlace(place));
        }
        if metadata.insert(key.clone(), value).is_some() {
            return Err(cursor.error(format!("key {key:?} occurs twice")));
        }
    }
    let mut tensors = Vec::new();
    for _ in 0..n_tensors {
        tensors.push(cursor.tensor()?);
    }
    let alignment = match metadata.get("general.alignment") {
        None => 32,
        Some(value) => match value.as_u64() {
            Some(alignment) if alignment.is_power_of_two() => alignment,
            _ => {
                return Err(cursor.error(format!(
                    "general.alignment is {value}, expected a power of two"
                )));
            }
        },
    };
    let start = cursor
        .at
        .checked_next_multiple_of(alignment)
        .unwrap_or(u64::MAX);
    place(&mut tensors, start, file.len()).map_err(|reason| cursor.error(reason))?;
    Ok(Gguf {
        metadata,
        arrays,
        tensors,
    })
}

/// Makes offsets relative to the file's start. Refuses tensors beyond the file's end, overlapping tensors, and duplicate
/// names.
fn place(tensors: &mut [GgufTensor], start: u64, len: u64) -> std::result::Result<(), String> {
    let mut names = HashSet::new();
    for tensor in &mut *tensors {
        let end = start.checked_add(tensor.offset);
        tensor.offset = end.unwrap_or(u64::MAX);
        let end = tensor.offset.checked_add(tensor.n_bytes as u64);
        let name = &tensor.name;
        if end.is_none_or(|end| end > len) {
            return Err(format!(
                "tensor {name:?} has {} bytes from {} on, but the file ends at {len}: it is cut short or damaged; download it again",
                tensor.n_bytes, tensor.offset
            ));
        }
        if !names.insert(name.clone()) {
            return Err(format!("tensor {name:?} occurs twice"));
        }
    }
    tensors.sort_by_key(|tensor| tensor.offset);
    for pair in tensors.windows(2) {
        if pair[0].offset + pair[0].n_bytes as u64 > pair[1].offset {
            return Err(format!(
                "tensors {:?} and {:?} overlap",
                pair[0].name, pair[1].name
            ));
        }
    }
    Ok(())
}

/// A position in a file that is read sequentially.
struct Cursor<'f> {
    file: &'f PositionedFile,
    /// The offset of the next byte.
    at: u64,
    /// Bytes that were read ahead; the first `taken` are used up.
    ahead: Vec<u8>,
    taken: usize,
}

impl<'f> Cursor<'f> {
    fn at(file: &'f PositionedFile, at: u64) -> Self {
        Self {
            file,
            at,
            ahead: Vec::new(),
            taken: 0,
        }
    }

    fn error(&self, reason: impl Into<String>) -> Error {
        Error::NotGguf {
            path: self.file.path().to_path_buf(),
            reason: reason.into(),
        }
    }

    /// # Errors
    /// If fewer than `n` bytes follow.
    fn check(&self, n: u64) -> Result<()> {
        let rest = self.file.len() - self.at;
        match n <= rest {
            true => Ok(()),
            false => Err(self.error(format!(
                "its header needs {n} bytes, but {rest} follow: it is cut short or damaged; download it again"
            ))),
        }
    }

    fn bytes(&mut self, n: u64) -> Result<Vec<u8>> {
        const AHEAD: u64 = 1 << 16;
        self.check(n)?;
        if (self.ahead.len() - self.taken) as u64 >= n {
            let found = self.ahead[self.taken..][..n as usize].to_vec();
            (self.at, self.taken) = (self.at + n, self.taken + n as usize);
            return Ok(found);
        }
        let more = n.max(AHEAD).min(self.file.len() - self.at);
        (self.ahead, self.taken) = (Vec::with_capacity(more as usize), 0);
        let read = self.file.append(&mut self.ahead, more as usize, self.at);
        read.map_err(|source| Error::io(self.file.path(), "read", source))?;
        self.bytes(n)
    }

    fn skip(&mut self, n: u64) -> Result<()> {
        self.check(n)?;
        self.at += n;
        let left = (self.ahead.len() - self.taken) as u64;
        match n <= left {
            true => self.taken += n as usize,
            false => (self.ahead, self.taken) = (Vec::new(), 0),
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut found = [0; N];
        found.copy_from_slice(&self.bytes(N as u64)?);
        Ok(found)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<String> {
        let n = self.u64()?;
        if n > MAX_TEXT_BYTES {
            return Err(self.error(format!(
                "its header has a string of {n} bytes; the limit is {MAX_TEXT_BYTES}"
            )));
        }
        let bytes = self.bytes(n)?;
        String::from_utf8(bytes)
            .map_err(|error| self.error(format!("its header is not UTF-8: {error}")))
    }

    /// Reads a key's value; `null` for arrays that are not kept.
    fn value(&mut self, key: &str, kind: u32) -> Result<Value> {
        if kind != ARRAY {
            return self.scalar(key, kind);
        }
        let (kind, n) = (self.u32()?, self.u64()?);
        let Some(size) = size_of_scalar(kind) else {
            if kind != TEXT {
                return Err(self.error(format!(
                    "key {key:?} is an array of type {kind}, expected numbers or strings"
                )));
            }
            // A tokenizer's are long, also those that a test writes shortly.
            if n <= MAX_KEPT_ITEMS && !key.starts_with("tokenizer.") {
                let items = (0..n).map(|_| self.scalar(key, kind));
                return Ok(Value::Array(items.collect::<Result<_>>()?));
            }
            for _ in 0..n {
                let n_bytes = self.u64()?;
                self.skip(n_bytes)?;
            }
            return Ok(Value::Null);
        };
        if n > MAX_KEPT_ITEMS {
            self.skip(n.saturating_mul(size))?;
            return Ok(Value::Null);
        }
        let items = (0..n).map(|_| self.scalar(key, kind));
        Ok(Value::Array(items.collect::<Result<_>>()?))
    }

    fn scalar(&mut self, key: &str, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => u8::from_le_bytes(self.array()?).into(),
            1 => i8::from_le_bytes(self.array()?).into(),
            2 => u16::from_le_bytes(self.array()?).into(),
            3 => i16::from_le_bytes(self.array()?).into(),
            4 => self.u32()?.into(),
            5 => i32::from_le_bytes(self.array()?).into(),
            // The shortest decimal that reads as this f32: 1e-5, not 9.999999747378752e-6.
            6 => decimal(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.array::<1>()? != [0]),
            8 => self.text()?.into(),
            10 => self.u64()?.into(),
            11 => i64::from_le_bytes(self.array()?).into(),
            12 => f64::from_le_bytes(self.array()?).into(),
            _ => return Err(self.error(format!("key {key:?} has the unknown type {kind}"))),
        })
    }

    fn tensor(&mut self) -> Result<GgufTensor> {
        let name = self.text()?;
        let n_dims = self.u32()?;
        if !(1..=4).contains(&n_dims) {
            return Err(self.error(format!(
                "tensor {name:?} has {n_dims} dimensions, expected 1 to 4"
            )));
        }
        let dims = (0..n_dims).map(|_| self.u64());
        let dims = dims.collect::<Result<Vec<u64>>>()?;
        let (number, offset) = (self.u32()?, self.u64()?);
        let Some(kind) = BlockKind::of(number) else {
            let kind = name_of_unread(number).map_or_else(
                || format!("with the number {number}, which is newer than this program"),
                str::to_string,
            );
            return Err(self.error(format!(
                "tensor {name:?} has the type {kind}, which is not supported; {} are; use a file \
                 of the same model in one of these, or make one with llama.cpp's \
                 `llama-quantize` from its F16 or BF16 file",
                BlockKind::listed()
            )));
        };
        let (numbers, bytes) = kind.block();
        let shape: Option<Vec<usize>> = dims
            .iter()
            .rev()
            .map(|&dim| usize::try_from(dim).ok())
            .collect();
        let n = shape.as_ref().and_then(|shape| {
            shape
                .iter()
                .try_fold(1usize, |n, &dim| n.checked_mul(dim.max(1)))
        });
        let (Some(shape), Some(n)) = (shape, n) else {
            return Err(self.error(format!("tensor {name:?}: its size overflows ({dims:?})")));
        };
        let columns = shape.last().copied().unwrap_or(0);
        if !columns.is_multiple_of(numbers) {
            return Err(self.error(format!(
                "tensor {name:?} has rows with {columns} elements, expected whole blocks of {numbers}"
            )));
        }
        let n_bytes = (n / numbers).checked_mul(bytes);
        let n_bytes =
            n_bytes.ok_or_else(|| self.error(format!("tensor {name:?}: its size overflows")))?;
        Ok(GgufTensor {
            name,
            kind,
            n_bytes: if shape.contains(&0) { 0 } else { n_bytes },
            shape,
            offset,
        })
    }
}

fn decimal(number: f32) -> Value {
    let shortest = number.to_string().parse::<f64>();
    shortest
        .ok()
        .and_then(serde_json::Number::from_f64)
        .map_or(Value::Null, Value::Number)
}

/// Returns the size in bytes of a number or boolean.
fn size_of_scalar(kind: u32) -> Option<u64> {
    Some(match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        _ => return None,
    })
}
