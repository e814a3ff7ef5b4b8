//! Reads tensors from safetensors, GGUF, PyTorch or NumPy files: a single file, a sharded checkpoint or a directory.
//!
//! Opening only reads and checks headers; tensors are read on request. Files are not trusted: whatever their bytes are, the
//! result is a tensor or an error, never a panic, and never an allocation beyond what the file's length justifies.
//!
//! Files are deliberately not memory-mapped. A positioned read goes directly into the vector that becomes the tensor. This
//! is one copy, as with a map, but needs no `unsafe`, cannot end in SIGBUS when another process truncates the file, and only
//! keeps the requested tensors in memory instead of every touched page.
//!
//! The format is described at <https://github.com/huggingface/safetensors#format>.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{CpuStorage, DType, Device, Storage, Tensor, WithDType};
use safetensors::Dtype;

use candle_blocks_base::memory::refused;
use candle_blocks_base::nearest;
use candle_blocks_base::{Error, Result};
use candle_blocks_kernels::storage::numbers::{from_bf16, from_f16};

mod computed;
mod formats;
mod gguf_files;
mod locate;
mod memory;
mod pieces;

#[doc(hidden)]
pub use crate::bytes::foreign::GIT_LFS;
#[doc(hidden)]
pub use crate::bytes::limited::{is_named, read_limited};
use crate::bytes::positioned::PositionedFile;
use crate::bytes::strided;
use crate::gguf::{self, Gguf};
#[doc(hidden)]
pub use computed::{Coding, Compute, StoredForm, StoredTensor};
use formats::read_header;
#[cfg(feature = "hub")]
pub(crate) use formats::{check, check_archive};
pub(crate) use locate::Index;
use locate::Located;
#[cfg(feature = "hub")]
pub(crate) use locate::weights_of_config;
#[doc(hidden)]
pub use locate::{INDEX, PICKLE, PICKLE_INDEX, SINGLE};
use memory::ReadCache;
use pieces::TensorPieces;

/// The least similarity for suggesting a name. With 0.5, `transformer.wte.weight` would no longer suggest `wte.weight`.
#[doc(hidden)]
pub const SIMILAR: f64 = 0.4;

/// A checkpoint's tensors, in one safetensors, GGUF, PyTorch (`torch.save`) or NumPy file, or in several files.
/// `Checkpoint::files` returns it.
#[derive(Clone, Debug)]
pub struct TensorFiles {
    path: PathBuf,
    directory: PathBuf,
    pub(crate) files: Vec<Arc<PositionedFile>>,
    tensors: BTreeMap<String, TensorInfo>,
    metadata: BTreeMap<String, String>,
    gguf: Option<Arc<Gguf>>,
    /// True if the keys in a GGUF file are the configuration.
    #[doc(hidden)]
    pub describes_itself: bool,
    /// Bytes that were read before, if they are kept in memory.
    memory: Option<Arc<ReadCache>>,
}

/// A tensor's description in a file's header. [`TensorFiles::info`](crate::tensors::TensorFiles::info) returns it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TensorInfo {
    /// The dtype of its elements in the file.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// The file that contains it.
    pub path: PathBuf,
    /// Its size in the file, in bytes.
    pub n_bytes: usize,
    storage: ElementSource,
}

/// The source of a tensor's elements.
#[derive(Clone, Debug)]
enum ElementSource {
    /// Elements in a file.
    Stored {
        /// The position of the first byte.
        offset: u64,
        /// The index in [`TensorFiles::files`].
        file: usize,
        /// Strides in elements, if the elements are not contiguous.
        strides: Option<Arc<[usize]>>,
    },
    /// Elements computed from other tensors.
    Computed(Arc<dyn Compute>),
}

impl TensorFiles {
    /// Opens a directory, a weights file, or the index of a sharded checkpoint (`.json`).
    ///
    /// In a directory, it searches like transformers: `model.safetensors`, `model.safetensors.index.json` with its shards,
    /// `pytorch_model.bin`, then `pytorch_model.bin.index.json`. After these, it accepts a single safetensors, GGUF, PyTorch
    /// or NumPy file with another name. Beside several GGUF files, image encoders, adapters and importance matrices do not
    /// count. A file that `config.json` names as `transformers_weights` comes before all others. In a sharded checkpoint,
    /// only tensors that the index lists are visible.
    ///
    /// A PyTorch file contains a dict of tensors, as `torch.save(model.state_dict(), file)` has written it since PyTorch
    /// 1.6. Nothing in it is executed, and a file with anything but tensors is refused.
    ///
    /// # Errors
    /// If the path cannot be read, there are no weights or several candidates ([`Error::NoWeights`]), a file is damaged or
    /// has another format ([`Error::NotSafetensors`], [`Error::NotGguf`], [`Error::UnreadableWeights`]), or the index and
    /// its shards do not agree ([`Error::BadIndex`]).
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        match locate::locate(path.as_ref())? {
            Located::File(file) => {
                let parts = gguf::parts(file)?;
                let (first, n) = (parts[0].clone(), parts.len());
                let mut files = Self::open_files(parts)?;
                if let Some(gguf) = files.gguf() {
                    gguf.check_count(&first)?;
                }
                if n > 1 {
                    files.path = first;
                }
                Ok(files)
            }
            Located::Index(path) => {
                let index = Index::read(path)?;
                let mut files = Self::open_files(index.shards()?)?;
                index.select(&mut files.tensors)?;
                files.path = index.path;
                Ok(files)
            }
        }
    }

    /// Opens several files that belong together, without an index.
    ///
    /// # Errors
    /// The errors of [`Self::open`]; also if two files contain a tensor with the same name.
    pub fn open_files(paths: Vec<PathBuf>) -> Result<Self> {
        let first = paths.first().ok_or_else(|| Error::NoWeights {
            path: PathBuf::new(),
            reason: "an empty list of files was given; name at least one".into(),
        })?;
        let directory = first.parent().unwrap_or(Path::new("")).to_path_buf();
        let path = if paths.len() == 1 { first } else { &directory };
        let mut opened = Self {
            path: path.clone(),
            directory,
            files: Vec::with_capacity(paths.len()),
            tensors: BTreeMap::new(),
            metadata: BTreeMap::new(),
            gguf: None,
            describes_itself: false,
            memory: None,
        };
        let n = paths.len();
        for (i, path) in paths.into_iter().enumerate() {
            opened.add(PositionedFile::open(path)?, (i, n))?;
        }
        Ok(opened)
    }

    /// Returns the path for messages: the file, the index, or the directory that contains several files.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the directory that contains the files, and usually `config.json`. An empty path means the current directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns whether a tensor with this name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns a tensor's dtype, shape and location.
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.get(name)
    }

    /// Returns the files' `__metadata__`. If several files contain a key, the first file's value counts.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// Returns the total size of all tensors in bytes.
    pub fn n_bytes(&self) -> u64 {
        self.tensors.values().map(|info| info.n_bytes as u64).sum()
    }

    /// Reads a tensor to the CPU in the file's dtype (BOOL becomes U8).
    ///
    /// # Errors
    /// If there is no such tensor, candle lacks its dtype, or the file can no longer be read.
    pub fn read(&self, name: &str) -> Result<Tensor> {
        let info = self.find(name)?;
        let all = 0..info.shape.iter().product();
        self.gather(name, info, std::slice::from_ref(&all), info.shape.clone())
    }

    /// Reads ranges of a tensor's first dimension to the CPU, concatenated.
    ///
    /// This extracts a slice of a fused `[3·d, d]` projection without reading all of it. For a tensor `[n, ..]` the result
    /// is `[m, ..]`, where `m` is the total length of the ranges.
    ///
    /// # Errors
    /// The errors of [`Self::read`]; also if the tensor has no dimensions or a range exceeds the first one.
    pub fn read_rows(&self, name: &str, rows: &[Range<usize>]) -> Result<Tensor> {
        let info = self.find(name)?;
        let outside = || {
            let shape = &info.shape;
            Error::input(
                name,
                format!("there are no rows {rows:?} in shape {shape:?}"),
            )
        };
        let (&n_rows, row_shape) = info.shape.split_first().ok_or_else(outside)?;
        if rows.iter().any(|r| r.start > r.end || r.end > n_rows) {
            return Err(outside());
        }
        // Each range fits the tensor, whose size was checked, but their total may not.
        let row_len: usize = row_shape.iter().product();
        let m = rows
            .iter()
            .try_fold(0usize, |m, range| m.checked_add(range.len()))
            .filter(|m| m.checked_mul(row_len.max(1)).is_some())
            .ok_or_else(outside)?;
        let spans: Vec<_> = rows
            .iter()
            .map(|range| range.start * row_len..range.end * row_len)
            .collect();
        let mut shape = info.shape.clone();
        shape[0] = m;
        self.gather(name, info, &spans, shape)
    }

    /// Reads spans of a tensor's elements, counted from the first, to the CPU as a tensor with this `shape`.
    ///
    /// # Errors
    /// The errors of [`Self::read`].
    #[doc(hidden)]
    pub fn read_spans(
        &self,
        name: &str,
        spans: &[Range<usize>],
        shape: Vec<usize>,
    ) -> Result<Tensor> {
        self.gather(name, self.find(name)?, spans, shape)
    }

    /// Passes a tensor's bytes to `write` in pieces, as they are in the file, for any dtype.
    #[doc(hidden)]
    pub fn copy(&self, name: &str, write: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        const PIECE_BYTES: usize = 1 << 20;
        let info = self.find(name)?;
        if let ElementSource::Computed(_) = info.storage {
            return self.copy_computed(name, write);
        }
        let pieces = TensorPieces::of(self, name, info)?;
        let mut piece: Vec<u8> = Vec::new();
        for start in (0..info.n_bytes).step_by(PIECE_BYTES) {
            pieces.read(start, PIECE_BYTES, &mut piece)?;
            write(&piece)?;
        }
        Ok(())
    }

    /// Returns whether two stored tensors have the same dtype, shape and bytes. Stops reading at the first difference.
    ///
    /// # Errors
    /// If a file can no longer be read.
    #[doc(hidden)]
    pub fn hold_equal(&self, one: &str, other: &str) -> Result<bool> {
        const PIECE_BYTES: usize = 1 << 20;
        let (first, second) = (self.find(one)?, self.find(other)?);
        let (Some(place), Some(other_place)) = (first.place(), second.place()) else {
            return Ok(false); // quantized separately
        };
        if (first.dtype, &first.shape) != (second.dtype, &second.shape) {
            return Ok(false);
        }
        if place == other_place {
            return Ok(true); // tied, in a pickle
        }
        let both = [
            TensorPieces::of(self, one, first)?,
            TensorPieces::of(self, other, second)?,
        ];
        let mut pieces: [Vec<u8>; 2] = Default::default();
        for start in (0..first.n_bytes).step_by(PIECE_BYTES) {
            for (tensor, piece) in both.iter().zip(&mut pieces) {
                tensor.read(start, PIECE_BYTES, piece)?;
            }
            if pieces[0] != pieces[1] {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns at most `max` names similar to `name`, most similar first; for messages.
    pub fn similar(&self, name: &str, max: usize) -> Vec<String> {
        nearest(name, self.names(), SIMILAR, max)
    }

    /// Adds the tensors and metadata of a file, given its index and the number of files.
    fn add(&mut self, file: PositionedFile, place: (usize, usize)) -> Result<()> {
        if gguf::begins_so(&file) {
            return self.add_gguf(file, place);
        }
        let header = read_header(&file)?;
        for entry in header.tensors {
            if let Some(other) = self.tensors.get(&entry.name) {
                return Err(Error::BadIndex {
                    path: file.path().to_path_buf(),
                    reason: format!(
                        "tensor {:?} is also in {}; open only files that belong to one checkpoint",
                        entry.name,
                        other.path.display()
                    ),
                });
            }
            let info = TensorInfo {
                dtype: entry.dtype,
                shape: entry.shape,
                path: file.path().to_path_buf(),
                n_bytes: entry.n_bytes,
                storage: ElementSource::Stored {
                    offset: entry.offset,
                    file: self.files.len(),
                    strides: entry.strides,
                },
            };
            self.tensors.insert(entry.name, info);
        }
        for (key, value) in header.metadata {
            self.metadata.entry(key).or_insert(value);
        }
        self.files.push(Arc::new(file));
        Ok(())
    }

    /// Like [`Self::info`], but a missing name is an error.
    #[doc(hidden)]
    pub fn find(&self, name: &str) -> Result<&TensorInfo> {
        self.info(name).ok_or_else(|| Error::MissingTensor {
            path: self.path.clone(),
            role: name.to_owned(),
            tried: vec![name.to_owned()],
            similar: self.similar(name, 3),
        })
    }

    /// Reads spans of elements, counted from the tensor's first, into one tensor with this `shape`.
    fn gather(
        &self,
        name: &str,
        info: &TensorInfo,
        spans: &[Range<usize>],
        shape: Vec<usize>,
    ) -> Result<Tensor> {
        if let ElementSource::Computed(compute) = &info.storage {
            return self.compute(&**compute, info, spans, shape);
        }
        match info.dtype {
            Dtype::BOOL | Dtype::U8 => self.gather_as::<u8>(name, info, spans, shape),
            Dtype::U32 => self.gather_as::<u32>(name, info, spans, shape),
            Dtype::I16 => self.gather_as::<i16>(name, info, spans, shape),
            Dtype::I32 => self.gather_as::<i32>(name, info, spans, shape),
            Dtype::I64 => self.gather_as::<i64>(name, info, spans, shape),
            Dtype::F16 => self.gather_as::<half::f16>(name, info, spans, shape),
            Dtype::BF16 => self.gather_as::<half::bf16>(name, info, spans, shape),
            Dtype::F32 => self.gather_as::<f32>(name, info, spans, shape),
            Dtype::F64 => self.gather_as::<f64>(name, info, spans, shape),
            _ => Err(Error::UnsupportedDType {
                path: info.path.clone(),
                tensor: name.to_owned(),
                found: format!("{:?}", info.dtype),
            }),
        }
    }

    fn gather_as<T: WithDType + bytemuck::Pod>(
        &self,
        name: &str,
        info: &TensorInfo,
        spans: &[Range<usize>],
        shape: Vec<usize>,
    ) -> Result<Tensor> {
        Ok(Tensor::from_vec(
            self.elements::<T>(name, info, spans)?,
            shape,
            &Device::Cpu,
        )?)
    }

    /// Returns the elements in spans of a stored tensor, as they are in the file.
    fn elements<T: bytemuck::Pod>(
        &self,
        name: &str,
        info: &TensorInfo,
        spans: &[Range<usize>],
    ) -> Result<Vec<T>> {
        let failed = |source| read_failed(name, info, source);
        let Some((file, offset, strides)) = info.place() else {
            return Err(Error::input(name, "it is computed, not stored in a file"));
        };
        let mut values: Vec<T> = Vec::new();
        let len = spans.iter().map(Range::len).sum();
        values
            .try_reserve_exact(len)
            .map_err(|_| refused(&info.path, len.saturating_mul(size_of::<T>())))?;
        let place = (file, offset, info.n_bytes);
        let file = &self.files[file];
        if let Some(strides) = strides {
            let sizes = (&info.shape[..], strides);
            strided::append(file, offset, sizes, spans, &mut values).map_err(failed)?;
            return Ok(values);
        }
        if let Some(memory) = &self.memory {
            let bytes = memory.bytes(file, place).map_err(failed)?;
            for span in spans {
                let bytes = bytes.get(span.start * size_of::<T>()..span.end * size_of::<T>());
                let bytes = bytes.ok_or_else(|| failed(ErrorKind::UnexpectedEof.into()))?;
                let mut read: Vec<T> = bytemuck::zeroed_vec(span.len());
                bytemuck::cast_slice_mut(&mut read).copy_from_slice(bytes);
                values.append(&mut read);
            }
            return Ok(values);
        }
        for span in spans {
            let offset = offset + (span.start * size_of::<T>()) as u64;
            file.append(&mut values, span.len(), offset)
                .map_err(failed)?;
        }
        Ok(values)
    }
}

/// Checks that a tensor has a floating-point dtype, so that it can be a weight.
#[doc(hidden)]
pub fn floating(tensor: Tensor, path: &Path, name: &str) -> Result<Tensor> {
    match tensor.dtype().is_float() {
        true => Ok(tensor),
        false => Err(Error::UnsupportedDType {
            path: path.to_path_buf(),
            tensor: name.to_owned(),
            found: format!("{:?}", tensor.dtype()),
        }),
    }
}

/// Converts a tensor as candle's `to_dtype` does. The kernels widen half types, because a debug build does not optimize candle.
///
/// # Errors
/// If candle has no such conversion.
#[doc(hidden)]
pub fn converted(tensor: &Tensor, dtype: DType) -> candle_core::Result<Tensor> {
    let widened = {
        let (storage, layout) = tensor.storage_and_layout();
        match (&*storage, layout.contiguous_offsets(), dtype) {
            (Storage::Cpu(CpuStorage::F16(all)), Some((start, end)), DType::F32) => {
                Some(from_f16(&all[start..end]))
            }
            (Storage::Cpu(CpuStorage::BF16(all)), Some((start, end)), DType::F32) => {
                Some(from_bf16(&all[start..end]))
            }
            _ => None,
        }
    };
    match widened {
        Some(widened) => Tensor::from_vec(widened, tensor.shape(), &Device::Cpu),
        None => tensor.to_dtype(dtype),
    }
}

/// Returns the error for a tensor that the header lists but that cannot be read.
fn read_failed(name: &str, info: &TensorInfo, source: std::io::Error) -> Error {
    match source.kind() {
        ErrorKind::UnexpectedEof => Error::damaged(
            &info.path,
            format!("it was cut short after it was opened; tensor {name:?} is incomplete"),
        ),
        _ => Error::io(&info.path, "read", source),
    }
}
