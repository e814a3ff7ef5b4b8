//! Saves a checkpoint: a copy of its files with some of the blocks' parameters replaced.
//!
//! The new files have the same names, layouts and dtypes as the opened ones, so the same programs can read them. They are
//! written to a temporary directory beside the final one, and renamed when everything is on disk, so there is never half a
//! checkpoint.

pub(crate) mod as_tensor;
pub(crate) mod new_files;

mod companions;
mod integer_packing;
mod packed;
mod quantized;
mod shards;
mod target;
mod threads;

use std::collections::{HashMap, HashSet};
use std::{fs, path::Path};

use candle_core::{D, DType, Device, Tensor};

pub use self::quantized::{GgufType, Quantization, QuantizedTensor};
pub(super) use self::quantized::{SquaredError, check_room};
use self::shards::{ShardIndex, shards};
pub(super) use self::target::SaveTarget;
pub(super) use self::threads::in_parts;
use crate::checkpoint::files::{INDEX, SINGLE};
use crate::checkpoint::loader::disk::assemble;
use crate::checkpoint::plan::source::StoredParameter;
use crate::checkpoint::plan::unknown_role;
use crate::checkpoint::write::{Overwrite, Sink, TensorRecord, write_streamed, write_tensor};
use crate::checkpoint::{AsTensor, Checkpoint};
use crate::error::{Error, Result, setters};
use candle_blocks_files::quantized::config_of_dense_weights;

pub(super) const CONFIG: &str = "config.json";

/// Controls saving to a directory that is not empty. Pass it to [`SaveOptions::existing`](crate::SaveOptions::existing).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExistingFiles {
    /// Returns an error and leaves it as it is.
    #[default]
    Refuse,
    /// Replaces it, if it only contains files that saving writes (`config.json`, `model*.safetensors` and their index) and
    /// other files of a checkpoint. The latter are kept: `generation_config.json`, the files of tokenizers, processors and
    /// sentence-transformers, chat templates, `README.md`, licenses and `training_args.bin`. The directory that the
    /// checkpoint was opened from may be replaced too; it is removed only when the new one is complete.
    Replace,
}

/// Options for saving a [`Checkpoint`] or an [`Architecture`](crate::Architecture).
#[derive(Clone, Debug)]
#[must_use]
pub struct SaveOptions {
    max_shard_bytes: u64,
    pub(super) existing: ExistingFiles,
}

impl Default for SaveOptions {
    /// Returns the defaults: shards of at most 5 GB, as on the Hub, and an error for a directory that is not empty.
    fn default() -> Self {
        Self {
            max_shard_bytes: 5_000_000_000,
            existing: ExistingFiles::Refuse,
        }
    }
}

impl SaveOptions {
    setters! {
        /// Sets the maximum size of a shard in bytes. A single tensor is never split.
        max_shard_bytes(bytes: u64) => max_shard_bytes = bytes;
        /// Sets what happens to a directory that is not empty.
        existing(existing: ExistingFiles) => existing = existing;
    }

    /// Writes a copy of `checkpoint` to `directory` in which the given parameters replace those in its files. Parameters are
    /// pairs of role and tensor, as in [`Loader::parameters`], `Lora::merge` or a `HashMap<String, Tensor>`.
    ///
    /// Each is converted to its name, layout and dtype on disk (an f32 parameter is rounded to the file's bf16). Everything
    /// else is copied bit for bit: other parameters, embeddings, heads, the checkpoint's other stacks, and `config.json`;
    /// also `generation_config.json` and the files of tokenizers, processors, chat templates and sentence-transformers
    /// beside it. Only one tensor is in memory at a time.
    ///
    /// The weights are saved as `model.safetensors`. Above the maximum size of a shard, they are saved as
    /// `model-00001-of-0000n.safetensors` with an index, as in `transformers`.
    ///
    /// [`Loader::parameters`]: crate::Loader::parameters
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if a role is unknown or given twice, a tensor has the wrong shape, does not have a
    /// floating-point dtype or exceeds the range of the file's dtype, or the directory is not empty; also if files cannot be
    /// read or written. Then no file remains, and the contents of `directory` are unchanged.
    pub fn save(
        &self,
        checkpoint: &Checkpoint,
        directory: impl AsRef<Path>,
        parameters: impl IntoIterator<Item = (impl AsRef<str>, impl AsTensor)>,
    ) -> Result<()> {
        let tensors = SavedTensors::new(checkpoint, parameters)?;
        let target = SaveTarget::new(directory.as_ref(), self.existing)?;
        let metadata = checkpoint.files.metadata();
        let metadata = metadata.iter().map(|(k, v)| (k.clone(), v.clone()));
        self.write_weights(
            target.staging(),
            tensors.records(),
            metadata.collect(),
            |name, write| tensors.write(name, write),
        )?;
        if let Some(config) = checkpoint.config_json()? {
            let bytes = config_of_dense_weights(&config)?;
            let bytes = checkpoint.with_true_ties(bytes)?;
            write_file(&target.staging().join(CONFIG), &bytes)?;
        }
        checkpoint.copy_companions(target.staging())?;
        target.commit()
    }

    /// Writes the weights, in shards, and their index.
    pub(super) fn write_weights(
        &self,
        directory: &Path,
        records: Vec<TensorRecord>,
        mut metadata: HashMap<String, String>,
        content: impl Fn(&str, &mut Sink) -> Result<()>,
    ) -> Result<()> {
        // transformers refuses files without this mark.
        let format = metadata.entry("format".to_string());
        format.or_insert_with(|| "pt".to_string());

        let shards = shards(records, self.max_shard_bytes);
        let n_shards = shards.len();
        let mut index = ShardIndex::default();
        for (i, records) in shards.into_iter().enumerate() {
            let file = match n_shards {
                1 => SINGLE.to_string(),
                _ => format!("model-{:05}-of-{n_shards:05}.safetensors", i + 1),
            };
            for record in &records {
                index.add(record, &file);
            }
            let metadata = Some(metadata.clone());
            let path = directory.join(file);
            write_streamed((&path, Overwrite::Allowed), records, metadata, &content)?;
        }
        if n_shards == 1 {
            return Ok(());
        }
        let json = serde_json::to_string_pretty(&index);
        let json = json.map_err(|error| Error::input(INDEX, error.to_string()))? + "\n";
        write_file(&directory.join(INDEX), json.as_bytes())
    }
}

impl Checkpoint {
    /// Copies what else belongs to the model to a new directory. What lies beside a GGUF file is not of it.
    fn copy_companions(&self, to: &Path) -> Result<()> {
        match self.files.gguf() {
            Some(_) => Ok(()),
            None => companions::copy_of_the_model(self.files.directory(), to),
        }
    }
}

/// The source of every tensor in the new files.
struct SavedTensors<'c> {
    checkpoint: &'c Checkpoint,
    given: HashMap<String, Tensor>,
    /// All roles in every tensor on disk that contains a given role.
    changed: HashMap<&'c str, Vec<&'c StoredParameter>>,
    /// Dequantized tensors that the family stores transposed.
    turned: HashSet<&'c str>,
}

impl<'c> SavedTensors<'c> {
    fn new(
        checkpoint: &'c Checkpoint,
        parameters: impl IntoIterator<Item = (impl AsRef<str>, impl AsTensor)>,
    ) -> Result<Self> {
        let sources = &checkpoint.plan.sources;
        let given = by_role(sources, parameters)?;
        let mut changed: HashMap<&str, Vec<&StoredParameter>> = HashMap::new();
        for source in sources.iter().filter(|s| given.contains_key(&s.role)) {
            for name in source.names() {
                changed.entry(name).or_default();
            }
        }
        for source in sources {
            for name in source.names() {
                if let Some(roles) = changed.get_mut(name) {
                    source.check_shape(&checkpoint.files)?;
                    roles.push(source);
                }
            }
        }
        let turned = sources
            .iter()
            .filter(|source| source.is_turned_by_quantization());
        Ok(Self {
            checkpoint,
            given,
            changed,
            turned: turned.map(|source| source.name.as_str()).collect(),
        })
    }

    /// Returns all tensors in the files, sorted by name.
    fn records(&self) -> Vec<TensorRecord> {
        let files = &self.checkpoint.files;
        let record = |name: &str| {
            let info = files.info(name)?;
            let mut shape = info.shape.clone();
            if self.turned.contains(name) {
                let n = shape.len();
                shape.swap(n - 2, n - 1); // for each matrix in a stack
            }
            Some(TensorRecord {
                name: name.to_string(),
                dtype: info.dtype,
                shape,
            })
        };
        files.names().filter_map(record).collect()
    }

    /// Passes the bytes of one tensor on disk to `write`.
    fn write(&self, name: &str, write: &mut Sink) -> Result<()> {
        let files = &self.checkpoint.files;
        let turned = |tensor: Tensor| match self.turned.contains(name) {
            true => tensor.transpose(D::Minus2, D::Minus1)?.contiguous(),
            false => Ok(tensor),
        };
        let Some(sources) = self.changed.get(name) else {
            return match self.turned.contains(name) {
                true => write_tensor(name, &turned(files.read(name)?)?, write),
                false => files.copy(name, write),
            };
        };
        let dtype = self.float_type(name)?;
        let mut by_role = HashMap::new();
        for source in sources {
            let tensor = match self.given.get(&source.role) {
                Some(tensor) => rounded(&source.role, tensor, dtype)?,
                None => source.read(files)?,
            };
            by_role.insert(source.role.clone(), tensor);
        }
        write_tensor(name, &turned(assemble(sources, &by_role)?)?, write)
    }

    /// Returns the floating-point dtype of a tensor on disk that contains parameters.
    fn float_type(&self, name: &str) -> Result<DType> {
        let files = &self.checkpoint.files;
        let info = files.find(name)?;
        match DType::try_from(info.dtype) {
            Ok(dtype) if dtype.is_float() => Ok(dtype),
            _ => Err(Error::UnsupportedDType {
                path: info.path.clone(),
                tensor: name.to_string(),
                found: format!("{:?}", info.dtype),
            }),
        }
    }
}

/// Converts a parameter to its file's dtype.
pub(super) fn rounded(role: &str, tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    let tensor = tensor.to_device(&Device::Cpu)?;
    let rounded = tensor.to_dtype(dtype)?;
    if !is_finite(&rounded)? && is_finite(&tensor)? {
        let dtype = dtype.as_str();
        let reason = format!(
            "it contains values beyond the range of {dtype}, in which the file stores it; clamp \
             them, or save to a copy of the checkpoint with a wider type"
        );
        return Err(Error::input(role, reason));
    }
    Ok(rounded)
}

/// Returns whether all elements are finite: NaN and infinity times 0 are NaN.
fn is_finite(tensor: &Tensor) -> Result<bool> {
    let sum = (tensor * 0.0)?.sum_all()?.to_dtype(DType::F64)?;
    Ok(sum.to_scalar::<f64>()? == 0.0)
}

impl StoredParameter {
    /// Checks that a tensor can replace the parameter: the same shape, and a floating-point dtype.
    fn accepts(&self, tensor: &Tensor) -> Result<()> {
        let reason = if tensor.dims() != self.shape {
            let (found, expected) = (tensor.dims(), &self.shape);
            format!("it has shape {found:?}, expected {expected:?}")
        } else if !tensor.dtype().is_float() {
            let found = tensor.dtype().as_str();
            format!("it has type {found}, expected a floating-point type")
        } else {
            return Ok(());
        };
        Err(Error::input(&self.role, reason))
    }
}

/// Returns the given parameters by role. Checks that each has a known role, is given once, and fits.
pub(super) fn by_role(
    sources: &[StoredParameter],
    parameters: impl IntoIterator<Item = (impl AsRef<str>, impl AsTensor)>,
) -> Result<HashMap<String, Tensor>> {
    let known: HashMap<&str, &StoredParameter> =
        sources.iter().map(|s| (s.role.as_str(), s)).collect();
    let mut by_role = HashMap::new();
    for (role, tensor) in parameters {
        let (role, tensor) = (role.as_ref(), tensor.as_tensor());
        let Some(source) = known.get(role) else {
            return Err(unknown_role(role, sources));
        };
        source.accepts(tensor)?;
        if by_role.insert(role.to_string(), tensor.detach()).is_some() {
            return Err(Error::input(role, "given twice; give each role once"));
        }
    }
    Ok(by_role)
}

/// Writes a small file.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || {
        // Windows flushes a file only for its writer.
        let mut file = fs::File::create(path)?;
        std::io::Write::write_all(&mut file, bytes)?;
        file.sync_all()
    };
    write().map_err(|source| Error::io(path, "write", source))
}
