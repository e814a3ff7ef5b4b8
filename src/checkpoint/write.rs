//! Writing a safetensors file, whole or not at all.
//!
//! The bytes go to a temporary file in the same directory, which takes the final name only when all of
//! them are on the disk. Whatever fails, and whenever the machine stops, the final name stands for the
//! old file or for the new one, never for a part.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{BufWriter, Write};
use std::ops::Range;
use std::path::Path;

use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use safetensors::Dtype;
use safetensors::tensor::TensorInfo;
use serde::{Serialize, Serializer};

use crate::{Error, Result};

/// The limit that readers of the format apply.
const MAX_HEADER_BYTES: usize = 100_000_000;
/// The data starts at a multiple of this, so that a mapped file has its tensors aligned.
const ALIGNMENT: usize = 8;

/// Writes named tensors to a safetensors file, replacing it if it exists.
///
/// The tensors may lie on any device and in any layout; they are copied one at a time, and only if
/// they need to be. Equal tensors and metadata give equal bytes, whatever their order. `transformers`
/// expects the metadata to hold `format: pt`.
///
/// # Errors
/// If two tensors have one name, a name is `__metadata__`, a tensor has a type other than U8, U32, I16,
/// I32, I64, F16, BF16, F32 and F64 ([`Error::InvalidInput`]), or the file cannot be written
/// ([`Error::Io`]). The path then holds what it held before, and no temporary file is left.
pub fn write_safetensors(
    path: impl AsRef<Path>,
    tensors: &[(String, Tensor)],
    metadata: Option<HashMap<String, String>>,
) -> Result<()> {
    let path = path.as_ref();
    let failed = |source| Error::io(path, "write", source);
    let records = in_file_order(tensors)?;
    let header = header(&records, metadata)?;

    let mut options = tempfile::Builder::new();
    // A temporary file is private by default; this one becomes an ordinary file (the umask applies).
    #[cfg(unix)]
    options.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let file = options.tempfile_in(directory(path)).map_err(failed)?;

    let mut out = BufWriter::new(file.as_file());
    out.write_all(&header).map_err(failed)?;
    for record in &records {
        let tensor = record.tensor.to_device(&Device::Cpu)?.contiguous()?;
        write_contiguous(record.name, &tensor, |bytes| {
            out.write_all(bytes).map_err(failed)
        })?;
    }
    out.flush().map_err(failed)?;
    drop(out);
    file.as_file().sync_all().map_err(failed)?;
    file.persist(path).map_err(|error| failed(error.error))?;
    Ok(())
}

/// A tensor on its way to the file.
struct Record<'a> {
    name: &'a str,
    dtype: Dtype,
    tensor: &'a Tensor,
}

/// By descending alignment and then by name, as `safetensors::serialize` orders them.
fn in_file_order(tensors: &[(String, Tensor)]) -> Result<Vec<Record<'_>>> {
    let mut records = Vec::with_capacity(tensors.len());
    let mut names = HashSet::new();
    for (name, tensor) in tensors {
        if name == "__metadata__" {
            return Err(Error::input(
                name,
                "the format reserves this name; rename the tensor",
            ));
        }
        if !names.insert(name) {
            return Err(Error::input(name, "two tensors have this name; rename one"));
        }
        records.push(Record {
            name,
            dtype: dtype_on_disk(name, tensor.dtype())?,
            tensor,
        });
    }
    records.sort_by(|a, b| b.dtype.cmp(&a.dtype).then(a.name.cmp(b.name)));
    Ok(records)
}

/// The header's length, the header, and spaces up to the alignment.
fn header(records: &[Record], metadata: Option<HashMap<String, String>>) -> Result<Vec<u8>> {
    let mut entries = Vec::with_capacity(records.len() + 1);
    if let Some(metadata) = metadata {
        // Sorted: a hash map's order differs from run to run.
        entries.push((
            "__metadata__",
            Entry::Metadata(metadata.into_iter().collect()),
        ));
    }
    let mut filled = 0;
    for record in records {
        let n_bytes = record.tensor.elem_count() * record.dtype.bitsize() / 8;
        let info = TensorInfo {
            dtype: record.dtype,
            shape: record.tensor.dims().to_vec(),
            data_offsets: (filled, filled + n_bytes),
        };
        filled += n_bytes;
        entries.push((record.name, Entry::Tensor(info)));
    }
    let unwritable = |reason: String| Error::input("header", reason);
    let mut json =
        serde_json::to_vec(&Entries(entries)).map_err(|error| unwritable(error.to_string()))?;
    json.resize(json.len().next_multiple_of(ALIGNMENT), b' ');
    if json.len() > MAX_HEADER_BYTES {
        return Err(unwritable(format!(
            "names, shapes and metadata take {} bytes; the format allows {MAX_HEADER_BYTES}",
            json.len()
        )));
    }
    Ok([&(json.len() as u64).to_le_bytes(), json.as_slice()].concat())
}

/// A JSON object in the given order.
struct Entries<'a>(Vec<(&'a str, Entry)>);

#[derive(Serialize)]
#[serde(untagged)]
enum Entry {
    Metadata(BTreeMap<String, String>),
    Tensor(TensorInfo),
}

impl Serialize for Entries<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, entry)| (name, entry)))
    }
}

/// Hands the bytes of a contiguous tensor on the CPU to `write`, without copying them.
fn write_contiguous(
    name: &str,
    tensor: &Tensor,
    write: impl FnOnce(&[u8]) -> Result<()>,
) -> Result<()> {
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cpu(storage), Some((begin, end))) = (&*storage, layout.contiguous_offsets())
    else {
        return Err(Error::input(name, "it could not be copied to the CPU"));
    };
    let span = begin..end;
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

fn dtype_on_disk(name: &str, dtype: DType) -> Result<Dtype> {
    Ok(match dtype {
        DType::U8 => Dtype::U8,
        DType::U32 => Dtype::U32,
        DType::I16 => Dtype::I16,
        DType::I32 => Dtype::I32,
        DType::I64 => Dtype::I64,
        DType::F16 => Dtype::F16,
        DType::BF16 => Dtype::BF16,
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        _ => return Err(unsupported(name, dtype)),
    })
}

fn unsupported(name: &str, dtype: DType) -> Error {
    let dtype = dtype.as_str();
    Error::input(
        name,
        format!("{dtype} tensors cannot be written; convert it with `to_dtype`"),
    )
}

/// Where the file will be: a rename works only within one file system.
fn directory(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
