//! Saves a checkpoint with quantized weights in its blocks.

use std::path::Path;

use half::{bf16, f16};
use safetensors::Dtype;

use super::integer_packing::IntegerPacking;
use super::{ExistingFiles, SaveOptions, SavedTensors};
use crate::checkpoint::gguf::{self, Dense};
use crate::checkpoint::plan::source::StoredParameter;
use crate::checkpoint::write::directory;
use crate::checkpoint::{AsTensor, Checkpoint, plan};
use crate::error::{Error, Result};
use crate::memory::check_next;
use candle_blocks_kernels::storage::BlockKind;

/// The format for the weights in a checkpoint's blocks.
/// Pass it to [`SaveOptions::save_quantized`](crate::SaveOptions::save_quantized).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Quantization {
    /// A GGUF file. Token embeddings and the head then have eight bits, and norms, biases, routers and position tables are
    /// f32, as in llama.cpp.
    Gguf(GgufType),
    /// A directory in compressed-tensors' `pack-quantized`, as llm-compressor writes it: integers with `bits` 4 or 8, and a
    /// scale for every `group_size` values in a row, 32, 64 or 128. All other tensors are unchanged.
    CompressedTensors {
        /// Bits for each weight.
        bits: usize,
        /// The number of weights that share a scale.
        group_size: usize,
    },
}

/// The block types of a GGUF file. Pass them to [`Quantization::Gguf`](crate::checkpoint::Quantization::Gguf).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GgufType {
    /// 8.5 bits: 32 values with a scale.
    Q8_0,
    /// 4.5 bits: 32 values with a scale.
    Q4_0,
    /// 4.5 bits: 256 values, where 32 share a 6-bit scale and minimum.
    Q4K,
    /// 6.6 bits: 256 values, where 16 share an 8-bit scale.
    Q6K,
}

/// A tensor that was saved. [`SaveOptions::save_quantized`](crate::SaveOptions::save_quantized) passes it to its callback.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QuantizedTensor {
    /// Its name in the new file.
    pub name: String,
    /// Its storage type, such as `Q4_K` or `BF16`; `left out` if it was not saved.
    pub kind: String,
    /// Its number of elements.
    pub n: usize,
    /// Its size in bytes.
    pub n_bytes: usize,
    /// The root mean squared error, relative to the root mean square of its values.
    pub error: f64,
    /// The reason why its storage type differs from the requested one.
    pub note: Option<String>,
}

impl SaveOptions {
    /// Writes a copy of `checkpoint` with quantized weights in its blocks, in which the given parameters replace those in
    /// its files, as [`Self::save`] does. Calls `each` for every tensor after it is written; an error from `each` ends the
    /// work.
    ///
    /// `path` is a directory, or for [`Quantization::Gguf`] a file. A GGUF file gets the configuration from `config.json`,
    /// but no tokenizer: llama.cpp can only read token ids from it, until the Python package `gguf` adds the vocabulary. The
    /// file appears when it is complete; one tensor at a time is in memory.
    ///
    /// ```no_run
    /// use candle_blocks::{Checkpoint, SaveOptions, candle_core::Tensor};
    /// use candle_blocks::checkpoint::{GgufType, Quantization};
    /// let checkpoint = Checkpoint::open("SmolLM2-135M")?;
    /// let unchanged = Vec::<(String, Tensor)>::new();
    /// let kind = Quantization::Gguf(GgufType::Q4K);
    /// SaveOptions::default().save_quantized(&checkpoint, kind, "model.gguf", unchanged, |tensor| {
    ///     println!("{} {} {:.2} %", tensor.name, tensor.kind, 100.0 * tensor.error);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Self::save`]; also if no tensor can be quantized, and for GGUF if there is no architecture for
    /// `model_type`, no key for a setting, or no name for a tensor.
    pub fn save_quantized(
        &self,
        checkpoint: &Checkpoint,
        quantization: Quantization,
        path: impl AsRef<Path>,
        parameters: impl IntoIterator<Item = (impl AsRef<str>, impl AsTensor)>,
        mut each: impl FnMut(&QuantizedTensor) -> Result<()>,
    ) -> Result<()> {
        let tensors = SavedTensors::new(checkpoint, parameters)?;
        match quantization {
            Quantization::Gguf(kind) => {
                self.save_gguf(&tensors, kind.into(), path.as_ref(), &mut each)
            }
            Quantization::CompressedTensors { bits, group_size } => {
                let packing = IntegerPacking { bits, group_size };
                if ![4, 8].contains(&bits) || ![32, 64, 128].contains(&group_size) {
                    let reason = format!(
                        "{bits} bits in groups of {group_size} are not supported; 4 and 8 bits in \
                         groups of 32, 64 and 128 are"
                    );
                    return Err(Error::input("quantization", reason));
                }
                self.save_packed(&tensors, packing, path.as_ref(), &mut each)
            }
        }
    }
}

/// The callback for every saved tensor.
pub(super) type Each<'e> = dyn FnMut(&QuantizedTensor) -> Result<()> + 'e;

impl From<GgufType> for BlockKind {
    fn from(kind: GgufType) -> Self {
        match kind {
            GgufType::Q8_0 => Self::Q8_0,
            GgufType::Q4_0 => Self::Q4_0,
            GgufType::Q4K => Self::Q4K,
            GgufType::Q6K => Self::Q6K,
        }
    }
}

impl SaveOptions {
    fn save_gguf(
        &self,
        tensors: &SavedTensors,
        kind: BlockKind,
        path: &Path,
        each: &mut Each,
    ) -> Result<()> {
        let checkpoint = tensors.checkpoint;
        if let Some(missing) = checkpoint.plan.missing.first() {
            return Err(plan::missing(
                missing,
                &checkpoint.plan.unused,
                &checkpoint.files,
            ));
        }
        let Some(json) = checkpoint.config_json()? else {
            let path = checkpoint.files.directory().to_path_buf();
            return Err(Error::MissingConfig { path });
        };
        check_file(path, self.existing)?;
        let ignored = &checkpoint.plan.ignored;
        let records = tensors.records().into_iter();
        let records: Vec<_> = records
            .filter(|record| !ignored.contains(&record.name))
            .map(|record| (tensors.is_transposed(&record.name), record))
            .collect();
        let read = |name: &str| {
            let record = records.iter().find(|(_, record)| record.name == name);
            let Some((is_transposed, record)) = record else {
                return Ok(vec![]);
            };
            let numbers = tensors.numbers(name, record.dtype)?;
            Ok(match (is_transposed, &record.shape[..]) {
                (true, &[rows, columns]) => {
                    check_room(name, numbers.len())?;
                    transposed(&numbers, rows, columns)
                }
                _ => numbers,
            })
        };
        let shapes = records.iter().map(|(is_transposed, record)| {
            let mut shape = record.shape.clone();
            if *is_transposed {
                shape.reverse();
            }
            (record.name.clone(), shape)
        });
        let copies = checkpoint.plan.sources.iter().flat_map(|s| &s.copies);
        let dense = Dense {
            json: &json,
            stack: checkpoint.config(),
            tensors: shapes.collect(),
            copies: copies.cloned().collect(),
            read: &read,
        };
        gguf::save(&dense, kind, path, each)
    }
}

/// Refuses to replace a file, unless that is allowed.
fn check_file(path: &Path, existing: ExistingFiles) -> Result<()> {
    let refused = |reason: &str| Err(Error::input(path.display().to_string(), reason));
    match existing {
        _ if !path.exists() => {
            let folder = directory(path);
            std::fs::create_dir_all(folder).map_err(|source| Error::io(folder, "create", source))
        }
        ExistingFiles::Refuse => refused(
            "it exists already; give a new name, or replace this file \
             (`SaveOptions::existing` with `ExistingFiles::Replace`)",
        ),
        ExistingFiles::Replace if !gguf::is_gguf(path) => {
            refused("it is not a GGUF file; give another name")
        }
        ExistingFiles::Replace => Ok(()),
    }
}

impl SavedTensors<'_> {
    /// Returns whether a weight is stored as `[d_in, d_out]`.
    pub(super) fn is_transposed(&self, name: &str) -> bool {
        let mut sources = self.checkpoint.plan.sources.iter();
        let found = sources.find(|source| source.name == name);
        found.is_some_and(StoredParameter::is_in_out)
    }

    /// Returns the values of a tensor on disk in f32.
    ///
    /// # Errors
    /// If it cannot be read or does not have a floating-point dtype.
    pub(super) fn numbers(&self, name: &str, dtype: Dtype) -> Result<Vec<f32>> {
        let convert: fn(&[u8], &mut Vec<f32>) = match dtype {
            Dtype::F32 => |piece, to| extend(piece, to, f32::from_le_bytes),
            Dtype::F16 => |piece, to| extend(piece, to, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Dtype::BF16 => {
                |piece, to| extend(piece, to, |bytes| bf16::from_le_bytes(bytes).to_f32())
            }
            Dtype::F64 => |piece, to| extend(piece, to, |bytes| f64::from_le_bytes(bytes) as f32),
            _ => {
                return Err(Error::UnsupportedDType {
                    path: self.checkpoint.files.path().to_path_buf(),
                    tensor: name.to_string(),
                    found: format!("{dtype:?}"),
                });
            }
        };
        let n = self.checkpoint.files.find(name)?.shape.iter().product();
        check_room(name, n)?;
        let mut numbers = Vec::with_capacity(n);
        self.write(name, &mut |piece| {
            convert(piece, &mut numbers);
            Ok(())
        })?;
        Ok(numbers)
    }
}

/// Appends the values of whole elements.
fn extend<const N: usize>(piece: &[u8], to: &mut Vec<f32>, number: impl Fn([u8; N]) -> f32) {
    to.extend(piece.as_chunks::<N>().0.iter().map(|&bytes| number(bytes)));
}

/// Checks that memory suffices for `n` values of a tensor in f32, beside small allocations.
pub(in crate::checkpoint) fn check_room(name: &str, n: usize) -> Result<()> {
    const SMALL: usize = 8 << 20;
    let n_bytes = n.saturating_mul(size_of::<f32>()).saturating_add(SMALL);
    check_next(n_bytes).map_err(|_| {
        let reason = format!(
            "saving it takes {n_bytes} bytes of memory more, and there are fewer; raise the process's limit, or save on a \
             machine with more memory"
        );
        Error::input(name, reason)
    })
}

fn transposed(numbers: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let row = |column: usize| (0..rows).map(move |row| numbers[row * columns + column]);
    (0..columns).flat_map(row).collect()
}

/// Sums of squares: of errors, and of the original values.
#[derive(Default)]
pub(in crate::checkpoint) struct SquaredError {
    off: f64,
    all: f64,
}

impl SquaredError {
    /// Adds the squares for some values; `stored` are the values after quantization.
    pub fn add(&mut self, numbers: &[f32], stored: &[f32]) {
        for (&number, &stored) in numbers.iter().zip(stored) {
            let (number, stored) = (f64::from(number), f64::from(stored));
            self.off += (number - stored) * (number - stored);
            self.all += number * number;
        }
    }

    /// Returns the root mean squared error relative to the values' root mean square; 0 if zeros stay zeros.
    pub fn relative_error(&self) -> f64 {
        match self.off == 0.0 {
            true => 0.0,
            false => (self.off / self.all).sqrt(),
        }
    }
}

impl std::iter::Sum for SquaredError {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |one, other| Self {
            off: one.off + other.off,
            all: one.all + other.all,
        })
    }
}
