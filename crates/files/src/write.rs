//! Writes a safetensors file atomically.
//!
//! The data is written to a temporary file in the same directory, which is renamed only when all of it is on disk. After any
//! failure, and even a power loss, the final name refers to the old file or to the complete new one.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, Permissions};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use self::unfinished::TemporaryFile;
use crate::bytes::header::MAX_HEADER_BYTES;
use crate::python::numpy;

#[doc(hidden)]
pub mod reserved;
#[doc(hidden)]
pub mod unfinished;
use candle_blocks_base::{Error, Result};
use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::{Serialize, Serializer};

#[doc(inline)]
pub use self::unfinished::remove_unfinished;

/// The data starts at a multiple of this, so that a mapped file has aligned tensors.
const ALIGNMENT: usize = 8;
/// The key in the header that is not a tensor.
const METADATA: &str = "__metadata__";

/// The permission to replace a file.
#[derive(Clone, Copy)]
#[doc(hidden)]
pub enum Overwrite {
    Allowed,
    Refused,
}

/// Writes named tensors to a safetensors file, replacing an existing one.
///
/// The tensors may be on any device and in any layout; they are copied one at a time, and only if necessary. Equal tensors
/// and metadata give equal bytes, in any order. `transformers` expects `format: pt` in the metadata. A link at `path` stays,
/// and its target is replaced; a replaced file keeps its permissions.
///
/// # Errors
/// [`Error::InvalidInput`] if two tensors have the same name, a name is `__metadata__`, or a dtype is not one of U8, U32,
/// I16, I32, I64, F16, BF16, F32 and F64; [`Error::Io`] if the file cannot be written, or `path` is a directory, a device or
/// a pipe. The contents at the path are then unchanged, and no temporary file is left.
pub fn write_safetensors(
    path: impl AsRef<Path>,
    tensors: &[(String, Tensor)],
    metadata: Option<HashMap<String, String>>,
) -> Result<()> {
    write_tensors((path.as_ref(), Overwrite::Allowed), tensors, metadata)
}

/// Writes a file like [`write_safetensors`].
///
/// # Errors
/// The errors of [`write_safetensors`], and an existing file that must not be overwritten.
#[doc(hidden)]
pub fn write_tensors(
    to: (&Path, Overwrite),
    tensors: &[(String, Tensor)],
    metadata: Option<HashMap<String, String>>,
) -> Result<()> {
    let mut by_name = HashMap::new();
    for (name, tensor) in tensors {
        if by_name.insert(name.as_str(), tensor).is_some() {
            return Err(Error::input(name, "two tensors have this name; rename one"));
        }
    }
    let records = tensors
        .iter()
        .map(|(name, tensor)| TensorRecord::of(name, tensor));
    let records = records.collect::<Result<_>>()?;
    write_streamed(to, records, metadata, |name, write| {
        write_tensor(name, by_name[name], write)
    })
}

/// A tensor that a file will contain.
#[doc(hidden)]
pub struct TensorRecord {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
}

impl TensorRecord {
    /// Returns the record of a tensor with this name.
    ///
    /// # Errors
    /// If files have no such dtype.
    pub fn of(name: &str, tensor: &Tensor) -> Result<Self> {
        Ok(Self {
            name: name.to_string(),
            dtype: dtype_on_disk(name, tensor.dtype())?,
            shape: tensor.dims().to_vec(),
        })
    }

    /// Returns its size in bytes.
    pub fn n_bytes(&self) -> usize {
        let n = self.shape.iter().product::<usize>() as u64;
        (n * self.dtype.bitsize() as u64 / 8) as usize
    }
}

/// Receives a tensor's bytes, at once or in pieces.
#[doc(hidden)]
pub type Sink<'a> = dyn FnMut(&[u8]) -> Result<()> + 'a;

/// Writes tensors with distinct names that `content` computes one at a time, so that only one needs to be in memory.
/// Otherwise like [`write_safetensors`].
#[doc(hidden)]
pub fn write_streamed(
    (path, overwrite): (&Path, Overwrite),
    mut records: Vec<TensorRecord>,
    metadata: Option<HashMap<String, String>>,
    mut content: impl FnMut(&str, &mut Sink) -> Result<()>,
) -> Result<()> {
    let failed = |source| Error::io(path, "write", source);
    if records.iter().any(|record| record.name == METADATA) {
        let reason = "the format reserves this name; rename the tensor";
        return Err(Error::input(METADATA, reason));
    }
    // By descending alignment and then by name, as `safetensors::serialize` orders them.
    records.sort_by(|a, b| b.dtype.cmp(&a.dtype).then_with(|| a.name.cmp(&b.name)));
    let header = header(&records, metadata)?;

    write_file((path, overwrite), |out| {
        out.write_all(&header).map_err(failed)?;
        for record in &records {
            let mut n_written = 0;
            content(&record.name, &mut |bytes| {
                n_written += bytes.len();
                out.write_all(bytes).map_err(failed)
            })?;
            if n_written != record.n_bytes() {
                let expected = record.n_bytes();
                let reason = format!("it gave {n_written} bytes, but its header says {expected}");
                return Err(Error::input(&record.name, reason));
            }
        }
        Ok(())
    })
}

/// Writes a file that gets its name only when all of it is on disk, replacing an existing one as [`write_safetensors`] does.
///
/// # Errors
/// [`Error::Io`] if it cannot be written, and errors from `content`; the contents at the path are then unchanged.
pub fn write_whole(path: &Path, content: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    write_file((path, Overwrite::Allowed), content)
}

fn write_file(
    (path, overwrite): (&Path, Overwrite),
    content: impl FnOnce(&mut dyn Write) -> Result<()>,
) -> Result<()> {
    let failed = |source| Error::io(path, "write", source);
    let (destination, replaced) = destination(path)?;
    let file = TemporaryFile::create(directory(&destination)).map_err(failed)?;
    if let Some(permissions) = replaced {
        match file.as_file().set_permissions(permissions) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {} // WASI has none
            set => set.map_err(failed)?,
        }
    }
    let mut out = BufWriter::new(file.as_file());
    content(&mut out)?;
    out.flush().map_err(failed)?;
    drop(out);
    file.as_file().sync_all().map_err(failed)?;
    let persisted = match overwrite {
        Overwrite::Allowed => file.persist(&destination),
        Overwrite::Refused => file.persist_new(&destination),
    };
    persisted.map_err(failed)
}

/// Passes the bytes of a tensor on any device and in any layout to `write`.
#[doc(hidden)]
pub fn write_tensor(name: &str, tensor: &Tensor, write: &mut Sink) -> Result<()> {
    let tensor = tensor.to_device(&Device::Cpu)?.contiguous()?;
    write_contiguous(name, &tensor, write)
}

/// Returns the bytes before a tensor's values in NumPy's format (`.npy`): those that `numpy.save` writes.
///
/// # Errors
/// If NumPy has no such dtype.
#[doc(hidden)]
pub fn npy_header(record: &TensorRecord) -> Result<Vec<u8>> {
    numpy::header(record.dtype, &record.shape).ok_or_else(|| {
        let reason = format!("NumPy has no {:?}; convert it to f32", record.dtype);
        Error::input(&record.name, reason)
    })
}

/// Returns the header's length, the header, and spaces up to the alignment.
fn header(records: &[TensorRecord], metadata: Option<HashMap<String, String>>) -> Result<Vec<u8>> {
    let mut entries = Vec::with_capacity(records.len() + 1);
    if let Some(metadata) = metadata {
        // Sorted: a hash map's order differs from run to run.
        entries.push((
            METADATA,
            JsonEntry::Metadata(metadata.into_iter().collect()),
        ));
    }
    let mut filled = 0;
    for record in records {
        let n_bytes = record.n_bytes();
        let info = TensorInfo {
            dtype: record.dtype,
            shape: record.shape.clone(),
            data_offsets: (filled, filled + n_bytes),
        };
        filled += n_bytes;
        entries.push((record.name.as_str(), JsonEntry::Tensor(info)));
    }
    let unwritable = |reason: String| Error::input("header", reason);
    let mut json =
        serde_json::to_vec(&Entries(entries)).map_err(|error| unwritable(error.to_string()))?;
    json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
    if json.len() as u64 > MAX_HEADER_BYTES {
        return Err(unwritable(format!(
            "names, shapes and metadata take {} bytes; the format allows {MAX_HEADER_BYTES}",
            json.len()
        )));
    }
    Ok([&(json.len() as u64).to_le_bytes(), json.as_slice()].concat())
}

/// A JSON object in the given order.
struct Entries<'a>(Vec<(&'a str, JsonEntry)>);

#[derive(Serialize)]
#[serde(untagged)]
enum JsonEntry {
    Metadata(BTreeMap<String, String>),
    Tensor(TensorInfo),
}

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, entry)| (name, entry)))
    }
}

/// Passes the bytes of a contiguous tensor on the CPU to `write`, without copying them.
fn write_contiguous(name: &str, tensor: &Tensor, write: &mut Sink) -> Result<()> {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cpu(storage), Some((begin, end))) = (&*storage, layout.contiguous_offsets())
    else {
        return Err(Error::input(name, "it could not be copied to the CPU"));
    };
    // A view without elements may begin after the last one.
    let span = if begin == end { 0..0 } else { begin..end };
    match storage {
        CpuStorage::U8(values) => write(bytes(values, span)),
        CpuStorage::U32(values) => write(bytes(values, span)),
        CpuStorage::I16(values) => write(bytes(values, span)),
        CpuStorage::I32(values) => write(bytes(values, span)),
        CpuStorage::I64(values) => write(bytes(values, span)),
        CpuStorage::F16(values) => write(bytes(values, span)),
        CpuStorage::BF16(values) => write(bytes(values, span)),
        CpuStorage::F32(values) => write(bytes(values, span)),
        CpuStorage::F64(values) => write(bytes(values, span)),
        _ => Err(unsupported(name, tensor.dtype())),
    }
}

fn bytes<T: bytemuck::Pod>(values: &[T], span: Range<usize>) -> &[u8] {
    bytemuck::cast_slice(&values[span])
}

/// Returns the safetensors dtype for a candle dtype.
#[doc(hidden)]
pub fn dtype_on_disk(name: &str, dtype: DType) -> Result<Dtype> {
    use DType::{BF16, F16, F32, F64, I16, I32, I64, U8, U32};
    match dtype {
        U8 | U32 | I16 | I32 | I64 | F16 | BF16 | F32 | F64 => Ok(dtype.into()),
        _ => Err(unsupported(name, dtype)),
    }
}

fn unsupported(name: &str, dtype: DType) -> Error {
    let dtype = dtype.as_str();
    Error::input(
        name,
        format!("{dtype} tensors cannot be written; convert it with `to_dtype`"),
    )
}

/// Returns the final file for `path`, following a link, and the permissions of the existing file.
fn destination(path: &Path) -> Result<(PathBuf, Option<Permissions>)> {
    let failed = |source| Error::io(path, "write", source);
    reserved::check(path).map_err(failed)?;
    match fs::metadata(path) {
        Err(_) => Ok((path.to_path_buf(), None)), // nothing exists there, or creating the temporary file will fail
        Ok(found) if found.is_file() => {
            let destination = fs::canonicalize(path).map_err(failed)?;
            Ok((destination, Some(found.permissions())))
        }
        Ok(found) if found.is_dir() => Err(failed(io::ErrorKind::IsADirectory.into())),
        // Renaming would replace /dev/null by a file.
        Ok(_) => {
            let reason = "it is not a regular file; give the name of a file";
            Err(failed(io::Error::other(reason)))
        }
    }
}

/// Returns the directory of `path`: a rename only works within one file system.
#[doc(hidden)]
pub fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
