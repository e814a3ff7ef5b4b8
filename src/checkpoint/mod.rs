//! Loading layers from checkpoints on disk or on the Hugging Face Hub, and saving them.
//!
//! [`Checkpoint`] reads the headers of the files and `config.json`, finds the [`Family`] and plans where
//! each parameter comes from; [`Loader`] reads the tensors that a layer needs; and [`Checkpoint::save`]
//! writes them back. [`PlainFile`] loads a single feed-forward that was saved without a configuration.

mod adapters;
mod architecture;
mod as_stored;
mod as_tensor;
mod attribute_names;
mod beside;
mod by_role;
pub mod config_json;
mod disk;
mod ends;
mod families;
mod family_file;
pub mod files;
mod gguf;
mod harmless;
mod harmless_keys;
#[cfg(feature = "hub")]
pub mod hub;
mod initializer_range;
mod known;
mod labels;
mod lacking;
mod loader;
mod masking;
mod nearest;
mod new_names;
mod plain;
mod plan;
pub(crate) mod python_json;
mod quantized;
mod read_keys;
mod report;
mod room;
mod rotary_json;
mod save;
mod save_new;
pub mod scheme;
mod source;
mod stored;
mod tensor_parallel;
mod tied;
mod two_stacks;
mod unfinished;
pub mod write;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::adapters::{Adapter, Brought};
use crate::checkpoint::architecture::located;
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::plan::Plan;
use crate::checkpoint::scheme::{Family, StackPart};
use crate::config::{ModelConfig, Precision, StackConfig, Task, setters};
use crate::error::{Error, Result};
use crate::layers::{FeedForward, Stack, TransformerBlock};
use crate::packed::PackedStack;

pub(crate) use adapters::{ExpertMatrix, ExpertPart, Reading};
pub use architecture::Architecture;
pub use as_stored::{InsteadOfStored, NotAsStored};
pub use as_tensor::AsTensor;
pub use beside::Beside;
pub use by_role::{ByRole, Parameters};
#[cfg(feature = "text")]
pub(crate) use gguf::{Special, TokenType, Words};
pub(crate) use loader::Held;
pub use loader::Loader;
pub use plain::PlainFile;
pub(crate) use plan::names_on_disk;
pub use report::{AppliedAdapter, Conversion, LoadReport, UsedTensor};
pub use save::{Existing, GgufType, Quantization, QuantizedTensor, SaveOptions};
pub use tensor_parallel::TensorParallel;
pub use two_stacks::OtherStack;

/// What to do with tensors that no rule of the family covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// Refuse to load them, since a renamed parameter would otherwise go unnoticed.
    #[default]
    Strict,
    /// Ignore them; [`Checkpoint::report`] lists them.
    AllowUnused,
}

/// A family of the caller's own.
#[derive(Clone, Debug)]
enum FamilySource {
    Given(Box<Family>),
    File(PathBuf),
}

/// Options for opening a [`Checkpoint`] or an [`Architecture`]; by default everything comes from the files.
///
/// ```no_run
/// use candle_blocks::{CheckpointOptions, Strictness, checkpoint::scheme::StackPart};
/// let decoder = CheckpointOptions::default()
///     .part(StackPart::Decoder)
///     .strictness(Strictness::AllowUnused)
///     .open("bart-base")?;
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct CheckpointOptions {
    family: Option<FamilySource>,
    part: Option<StackPart>,
    /// The model types whose encoder is meant where no stack is chosen.
    encoder_of: &'static [&'static str],
    whole: bool,
    config: Option<PathBuf>,
    strictness: Strictness,
    keeps_quantized: bool,
    beside: Beside,
    adapters: Vec<PathBuf>,
}

impl CheckpointOptions {
    setters! {
        /// Sets whether files beside a GGUF file go before what it says itself.
        beside(beside: Beside) => beside = beside;
        /// Chooses one stack of a checkpoint that contains several.
        part(part: StackPart) => part = Some(part);
        /// Uses the given family instead of the one that `model_type` names.
        family(family: Family) => family = Some(FamilySource::Given(Box::new(family)));
        /// Like [`Self::family`], with the table from the JSON file at `path`; see [`Family::from_json_file`].
        family_file(path: impl Into<PathBuf>) => family = Some(FamilySource::File(path.into()));
        /// Uses the `config.json` at `path` instead of the one beside the weights.
        config(path: impl Into<PathBuf>) => config = Some(path.into());
        /// Sets what happens to tensors that the family does not know.
        strictness(strictness: Strictness) => strictness = strictness;
    }

    /// Opens both stacks of a checkpoint that has two, unless one is chosen: the decoder or the text tower, and with it the
    /// encoder or the vision tower, as one model. The roles of the latter then begin with `encoder.` or `vision.`. Of files
    /// that hold one of the two alone, that one; other checkpoints are opened as without.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// Chooses the encoder of checkpoints of these model types, if no stack is chosen.
    #[cfg(feature = "text")]
    pub(crate) fn encoder_of(mut self, model_types: &'static [&'static str]) -> Self {
        self.encoder_of = model_types;
        self
    }

    /// Applies the adapter that Hugging Face's PEFT library saved in this directory, behind those before: its LoRA is added to
    /// the weights as they are read, as by PEFT's `merge_and_unload`, and modules that were trained whole replace the model's.
    /// [`LoadReport::adapters`] lists what is applied.
    ///
    /// ```no_run
    /// use candle_blocks::{CheckpointOptions, Precision};
    /// let checkpoint = CheckpointOptions::default().adapter("my-lora").open("llama-3.2-1b")?;
    /// let model = checkpoint.packed_model(Precision::F32)?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    pub fn adapter(mut self, directory: impl Into<PathBuf>) -> Self {
        self.adapters.push(directory.into());
        self
    }

    /// Opens the checkpoint at `path`; see [`Checkpoint::open`].
    pub fn open(mut self, path: impl AsRef<Path>) -> Result<Checkpoint> {
        let mut path = path.as_ref().to_path_buf();
        if let Some(directory) = adapters::alone(&path, self.config.as_deref()) {
            let adapter = Adapter::open(directory)?;
            let Some(base) = adapter.local_base()? else {
                return Err(adapter.without_base()?);
            };
            self.adapters.insert(0, directory.to_path_buf());
            path = base;
        }
        let path = path.as_path();
        let checkpoint = self.clone().open_stack(path)?;
        let Some(config) = &checkpoint.config_path else {
            return Ok(checkpoint);
        };
        let Some((second, part, joint)) = self.second(&checkpoint.family, config)? else {
            return Ok(checkpoint);
        };
        let other = second.open_stack(path)?;
        // Some classes save one stack alone, under the name of both.
        if other.plan.of_blocks().is_empty() {
            return Ok(checkpoint);
        }
        if checkpoint.plan.of_blocks().is_empty() {
            return Ok(other);
        }
        checkpoint.joined(other, part, joint)
    }

    fn open_stack(self, path: &Path) -> Result<Checkpoint> {
        let mut files = TensorFiles::open(path)?;
        let config_path = match &self.config {
            Some(config) => config.clone(),
            None if files.gguf().is_some() => files.path().to_path_buf(),
            None => files.directory().join("config.json"),
        };
        let (strictness, keeps_quantized) = (self.strictness, self.keeps_quantized);
        let beside = self.beside;
        let adapters = self.adapters_beside(&files)?;
        let mut json = ConfigJson::open_named(&config_path)?;
        let (family, config) = self.blocks(&config_path, json.as_ref())?;
        let (mut applied, mut brought) = (Vec::new(), Vec::new());
        if let Some(json) = &mut json {
            quantized::dequantize(json, &mut files)?;
            gguf::translate(json.value(), &mut files)?;
            if !adapters.is_empty() {
                let plan = Plan::new(&family, &config, Some(json), &files);
                let plan = plan.map_err(|error| located(error, &config_path))?;
                let base = adapters::Base::new(&family, &config, &plan);
                (applied, brought) = adapters::apply(adapters, &base, json, &mut files)?;
            }
        }
        let plan = Plan::new(&family, &config, json.as_ref(), &files);
        let mut plan = plan.map_err(|error| located(error, &config_path))?;
        // Of two stacks, the other may have it.
        let is_whole = plan.model.is_some() && family.part.is_none();
        let is_placed = |brought: &Brought| {
            plan.sources
                .iter()
                .any(|s| s.names().any(|n| n == brought.name))
        };
        if let Some(lost) = brought.into_iter().find(|b| is_whole && !is_placed(b)) {
            return Err(lost.error);
        }
        if let (Some(json), Some(_)) = (&json, &plan.model)
            && files.gguf().is_none()
        {
            plan.unread_keys = harmless_keys::unknown(json);
            if ends::lacks_head(&family, json)? {
                plan.unread_keys.push("architectures".to_string());
            }
        }
        Ok(Checkpoint {
            files,
            family,
            config,
            plan,
            strictness,
            keeps_quantized,
            beside,
            json: json.filter(|_| !applied.is_empty()),
            adapters: applied,
            other: None,
            is_joined: false,
            config_path: config_path.exists().then_some(config_path),
        })
    }
}

/// The files of a pretrained model: their family, the configuration of the blocks, and where every parameter is stored.
///
/// ```no_run
/// use candle_blocks::{Checkpoint, candle_core::{DType, Device, Tensor}};
/// let checkpoint = Checkpoint::open("all-MiniLM-L6-v2")?;
/// let block = checkpoint.block(0, DType::F32, &Device::Cpu)?;
/// let x = Tensor::randn(0f32, 1., (1, 16, 384), &Device::Cpu)?;
/// println!("{}", block.forward(&x)?);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    files: TensorFiles,
    family: Family,
    config: StackConfig,
    plan: Plan,
    strictness: Strictness,
    /// Whether linear layers keep quantised weights as they are in the files.
    keeps_quantized: bool,
    beside: Beside,
    /// Whether this is one of two stacks that make one model.
    is_joined: bool,
    /// The other of them.
    other: Option<OtherStack>,
    /// The `config.json`, unless there is none.
    config_path: Option<PathBuf>,
    /// The configuration with what adapters change of it.
    json: Option<ConfigJson>,
    /// The adapters that are part of the weights.
    adapters: Vec<AppliedAdapter>,
}

impl Checkpoint {
    /// Opens a directory, a single `.safetensors` file, or the index of a sharded checkpoint, together with
    /// the `config.json` beside it; or a `.gguf` file, which holds its own. Only headers are read, and biases that the model
    /// does not have: those of zeros are ignored.
    ///
    /// Weights that were quantised are read as the numbers that their codes stand for, in the dtype that is asked for.
    ///
    /// # Errors
    /// If a file is missing or malformed, `model_type` is unknown, or the configuration is invalid.
    /// Missing tensors are an error only when they are loaded, but [`Self::report`] lists them before;
    /// shapes and dtypes are checked when a tensor is loaded.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        CheckpointOptions::default().open(path)
    }

    /// Downloads a repository of the Hugging Face Hub (`"owner/name"`, branch `main`) into the cache that
    /// Python's `huggingface_hub` uses too, and opens it. For another revision, token or cache, see
    /// [`hub::Hub`].
    ///
    /// # Errors
    /// If the download fails, or as for [`Self::open`].
    #[cfg(feature = "hub")]
    pub fn from_hub(repo: impl Into<String>) -> Result<Self> {
        Self::open(hub::Hub::new(repo).download()?)
    }

    /// The name of the family, such as `"bert"`.
    pub fn family(&self) -> &str {
        &self.family.name
    }

    /// The configuration of the blocks, read from `config.json`.
    pub fn config(&self) -> &StackConfig {
        &self.config
    }

    /// The configuration of the whole model.
    ///
    /// # Errors
    /// If the family does not say what surrounds the blocks, `config.json` lacks a key of it, or the files hold no
    /// embeddings.
    pub fn model_config(&self) -> Result<&ModelConfig> {
        let reason = || match &self.plan.no_model {
            Some(error) => error.to_string(),
            None => "there is no config.json".to_string(),
        };
        let model = self.plan.model.as_ref();
        model.ok_or_else(|| Error::InvalidConfig(format!("no whole model: {}", reason())))
    }

    /// What the head of the class that `config.json` names is for, if the files hold no parameters of that head: the model
    /// then gives no logits.
    ///
    /// # Errors
    /// If `config.json` cannot be read.
    pub fn missing_head(&self) -> Result<Option<Task>> {
        let (Some(json), Some(model)) = (self.config_json()?, &self.plan.model) else {
            return Ok(None);
        };
        let is_missing = |task: &Task| model.head.is_none() && self.family.has_head(*task);
        Ok(ends::task_of(&json)?.filter(is_missing))
    }

    /// The `config.json`, unless there is none.
    pub(crate) fn config_json(&self) -> Result<Option<ConfigJson>> {
        let opened = || self.config_path.as_deref().map(ConfigJson::open);
        match &self.json {
            Some(json) => Ok(Some(json.clone())),
            None => opened().transpose(),
        }
    }

    /// The tensors of the files, by their names on disk: for embeddings, heads and other tensors outside the blocks.
    pub fn files(&self) -> &TensorFiles {
        &self.files
    }

    /// Reports on every tensor: used, ignored, outside the blocks, unused or missing.
    pub fn report(&self) -> LoadReport {
        LoadReport::new(&self.plan, &self.files, &self.adapters)
    }

    /// A loader of parameters as plain tensors, for inference.
    ///
    /// # Errors
    /// If `dtype` is not a floating-point type that `device` computes in, the files contain unknown tensors and
    /// [`Strictness`] forbids them, or weights shall stay quantised and none are.
    pub fn loader(&self, dtype: DType, device: &Device) -> Result<Loader<'_>> {
        Loader::new(self, dtype, device, None)
    }

    /// A loader of parameters as variables, for training; [`Loader::parameters`] lists them; errors as for
    /// [`Self::loader`]. Weights that stay quantised ([`CheckpointOptions::keep_quantized`]) are none of them.
    pub fn trainable(&self, dtype: DType, device: &Device) -> Result<Loader<'_>> {
        Loader::new(self, dtype, device, Some(Parameters::default()))
    }

    /// Loads block `i`, counted from 0, for inference; errors as for [`Loader::block`].
    pub fn block(&self, i: usize, dtype: DType, device: &Device) -> Result<TransformerBlock> {
        self.loader(dtype, device)?.block(i)
    }

    /// Loads the feed-forward of block `i`, for inference; errors as for [`Loader::block`].
    pub fn feed_forward(&self, i: usize, dtype: DType, device: &Device) -> Result<FeedForward> {
        self.loader(dtype, device)?.feed_forward(i)
    }

    /// Loads all blocks and the final norm, for inference; errors as for [`Loader::block`].
    pub fn stack(&self, dtype: DType, device: &Device) -> Result<Stack> {
        self.loader(dtype, device)?.stack()
    }

    /// Loads all blocks and the final norm and packs them: the fastest way to run a checkpoint on a CPU.
    ///
    /// Each block is packed, and its original weights are released, before the next is read.
    pub fn packed_stack(&self, precision: Precision) -> Result<PackedStack> {
        self.loader(DType::F32, &Device::Cpu)?
            .packed_stack(precision)
    }

    /// Finds the tensors of blocks that contain NaN or infinity, each with the index of the first such element.
    ///
    /// # Errors
    /// If a tensor cannot be read.
    pub fn non_finite(&self) -> Result<Vec<(String, Vec<usize>)>> {
        let mut found = Vec::new();
        for used in self.report().used {
            let tensor = self.files.read(&used.name)?;
            let values = tensor
                .to_dtype(DType::F64)?
                .flatten_all()?
                .to_vec1::<f64>()?;
            if let Some(mut at) = values.iter().position(|value| !value.is_finite()) {
                let mut index = Vec::new();
                for size in tensor.dims().iter().rev() {
                    index.insert(0, at % size);
                    at /= size;
                }
                found.push((used.name, index));
            }
        }
        Ok(found)
    }

    /// The shape of a parameter of the blocks, by role.
    pub(crate) fn shape_of(&self, role: &str) -> Option<&[usize]> {
        let source = self.plan.source(role);
        source.map(|source| source.shape.as_slice())
    }

    /// Converts tensors by role (`blocks.0.feed_forward.up.weight`), such as gradients, to the names and layouts that the
    /// files use, in the order of the layers.
    ///
    /// # Errors
    /// If a role is not one of this checkpoint's parameters, a tensor has the wrong number of output features, only some of
    /// the roles that share a fused tensor are present, or two roles share the same features of one.
    pub fn to_disk(&self, by_role: &HashMap<String, Tensor>) -> Result<Vec<(String, Tensor)>> {
        disk::to_disk(&self.plan, by_role)
    }

    /// Saves a copy of this checkpoint, with the given parameters replaced, to a new directory;
    /// [`SaveOptions::save`] has options.
    ///
    /// # Errors
    /// As for [`SaveOptions::save`].
    pub fn save(
        &self,
        directory: impl AsRef<Path>,
        parameters: impl IntoIterator<Item = (impl AsRef<str>, impl AsTensor)>,
    ) -> Result<()> {
        SaveOptions::default().save(self, directory, parameters)
    }
}
