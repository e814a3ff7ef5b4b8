//! Loads layers from checkpoints on disk or on the Hugging Face Hub, and saves them.
//!
//! [`Checkpoint`] reads the files' headers and `config.json`, finds the [`Family`] and plans each parameter's source.
//! [`Loader`] reads the tensors that a layer needs, and [`Checkpoint::save`] writes them back. [`PlainFile`] loads a single
//! feed-forward that was saved without a configuration.

mod adapters;
mod architecture;
mod beside;
mod families;
mod gguf;
mod keys;
mod loader;
mod plain;
mod plan;
mod report;
mod save;
pub mod scheme;
mod two_stacks;

#[cfg(feature = "hub")]
#[doc(inline)]
pub use candle_blocks_files::hub;
use candle_blocks_files::quantized;
#[doc(hidden)]
pub use candle_blocks_files::{config_json, tensors as files, write};

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::adapters::{Adapter, Brought};
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::plan::Plan;
use crate::checkpoint::scheme::{Family, StackPart};
use crate::config::{HeadTask, ModelConfig, StackConfig};
use crate::error::{Error, Result, setters};

pub(crate) use adapters::{AssumedOrientation, ExpertMatrix, ExpertPart, PeftBase};
pub use architecture::Architecture;
pub use beside::FilesBeside;
pub(crate) use loader::LoadScope;
pub use loader::Loader;
pub use loader::as_stored::{InsteadOfStored, NotAsStored};
pub use loader::by_role::{ByRole, Parameters};
pub use loader::tensor_parallel::TensorParallel;
pub use loader::weights::Weights;
pub use plain::PlainFile;
pub(crate) use plan::names_on_disk;
pub use report::{AppliedAdapter, Conversion, LoadReport, UsedTensor};
pub use save::as_tensor::AsTensor;
pub use save::{ExistingFiles, GgufType, Quantization, QuantizedTensor, SaveOptions};
pub use two_stacks::SecondStack;

#[deprecated(note = "renamed to `FilesBeside`")]
#[doc(hidden)]
pub type Beside = FilesBeside;

#[deprecated(note = "renamed to `ExistingFiles`")]
#[doc(hidden)]
pub type Existing = ExistingFiles;

/// Controls tensors that no rule of the family covers.
/// Pass it to [`CheckpointOptions::strictness`](crate::CheckpointOptions::strictness).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strictness {
    /// Refuses to load them, because a renamed parameter would otherwise go unnoticed.
    #[default]
    Strict,
    /// Ignores them; [`Checkpoint::report`] lists them.
    AllowUnused,
}

/// The source of a custom family.
#[derive(Clone, Debug)]
enum FamilySource {
    Given(Box<Family>),
    File(PathBuf),
}

/// Options for opening a [`Checkpoint`] or an [`Architecture`]. By default, the files determine everything.
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
    /// Model types for which the encoder is the default stack.
    encoder_of: &'static [&'static str],
    whole: bool,
    config: Option<PathBuf>,
    /// The configuration in place of the one in a `config.json`.
    described: Option<ConfigJson>,
    strictness: Strictness,
    keeps_quantized: bool,
    beside: FilesBeside,
    adapters: Vec<PathBuf>,
}

impl CheckpointOptions {
    setters! {
        /// Sets whether files beside a GGUF file take precedence over the file's own settings.
        beside(beside: FilesBeside) => beside = beside;
        /// Selects one stack of a checkpoint that contains several.
        part(part: StackPart) => part = Some(part);
        /// Uses the given family instead of the one for `model_type`.
        family(family: Family) => family = Some(FamilySource::Given(Box::new(family)));
        /// Like [`Self::family`], with the table from the JSON file at `path`; see [`Family::from_json_file`].
        family_file(path: impl Into<PathBuf>) => family = Some(FamilySource::File(path.into()));
        /// Uses the `config.json` at `path` instead of the one beside the weights.
        config(path: impl Into<PathBuf>) => config = Some(path.into());
        /// Sets what happens to tensors that the family does not know.
        strictness(strictness: Strictness) => strictness = strictness;
    }

    /// Returns whether no option changes what a folder's own files say of a model.
    #[cfg(feature = "text")]
    pub(crate) fn is_default(&self) -> bool {
        let is_set = [
            self.family.is_some(),
            self.part.is_some(),
            self.config.is_some(),
            !self.adapters.is_empty(),
        ];
        !is_set.contains(&true)
    }

    /// Opens a checkpoint with two stacks as one model, unless one is selected: the decoder with its encoder, or the text
    /// tower with its vision tower. The roles of the encoder or the vision tower then begin with `encoder.` or `vision.`. If
    /// the files contain only one of the two stacks, opens that one. Has no effect on other checkpoints.
    pub fn whole(mut self) -> Self {
        self.whole = true;
        self
    }

    /// Selects the encoder for checkpoints with these model types, if no stack is selected.
    #[cfg(feature = "text")]
    pub(crate) fn encoder_of(mut self, model_types: &'static [&'static str]) -> Self {
        self.encoder_of = model_types;
        self
    }

    /// Uses this configuration, such as a part of another file, instead of a `config.json`.
    #[cfg(feature = "text")]
    pub(crate) fn described_by(mut self, json: ConfigJson) -> Self {
        self.described = Some(json);
        self
    }

    /// Applies the adapter that Hugging Face's PEFT library saved in this directory, after those applied before. LoRA is
    /// added to the weights while they are read, as by PEFT's `merge_and_unload`, and modules that were trained in full
    /// replace the model's. [`LoadReport::adapters`] lists the applied adapters. In place of a directory, the name of a task
    /// selects one of the adapters in the model's own files (`lora_adaptations` of Jina Embeddings v3).
    ///
    /// ```no_run
    /// use candle_blocks::{CheckpointOptions, Precision, Weights};
    /// let checkpoint = CheckpointOptions::default().adapter("my-lora").open("llama-3.2-1b")?;
    /// let model = checkpoint.load(Weights::Packed(Precision::F32)).model()?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    pub fn adapter(mut self, directory: impl Into<PathBuf>) -> Self {
        self.adapters.push(directory.into());
        self
    }

    /// Loads dense weights as [`Weights::AsStored`].
    #[doc(hidden)]
    #[deprecated(note = "load with `Weights::AsStored(dtype, device)`")]
    pub fn keep_quantized(mut self) -> Self {
        self.keeps_quantized = true;
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
        let Some((second, part, kind)) = self.second(&checkpoint.family, config)? else {
            return Ok(checkpoint);
        };
        let other = second.open_stack(path)?;
        // Some classes save only one stack, with the name for both.
        if other.plan.in_blocks().is_empty() {
            return Ok(checkpoint);
        }
        if checkpoint.plan.in_blocks().is_empty() {
            return Ok(other);
        }
        checkpoint.joined(other, part, kind)
    }

    fn open_stack(mut self, path: &Path) -> Result<Checkpoint> {
        let mut files = TensorFiles::open(path).map_err(|error| {
            // Files of a method that is not supported may have another layout and the unquantized model's index.
            quantized::refused(path).unwrap_or(error)
        })?;
        if self.family.is_none() {
            candle_blocks_files::python::native::refuse(files.path(), files.names())?;
        }
        let described = self.described.take();
        let is_described = described.is_some();
        let config_path = match (&described, &self.config) {
            (Some(json), _) => json.path().to_path_buf(),
            (None, Some(config)) => config.clone(),
            _ if files.gguf().is_some() => files.path().to_path_buf(),
            _ => files.directory().join("config.json"),
        };
        let (strictness, keeps_quantized) = (self.strictness, self.keeps_quantized);
        let beside = self.beside;
        let mut json = match described {
            Some(json) => Some(json),
            None => gguf::open_named_config(&config_path)?,
        };
        let task = adapters::Task::taken(&mut self.adapters, json.as_ref())?;
        let language = adapters::apply_language(&mut self.adapters, &mut json, &mut files)?;
        let adapters = self.adapters_beside(&files)?;
        let (family, config) = self.blocks(&config_path, json.as_ref())?;
        let config = loader::stored_frequencies::with_stored(&family, config, &files)?;
        let task_head = adapters::apply_task(task.as_ref(), &mut files)?;
        let (mut applied, mut brought) = (Vec::new(), Vec::new());
        let mut left_out = quantized::LeftOut::default();
        if let Some(json) = &mut json {
            let stacks = plan::stacked_experts::split(&mut files, &family, &config)?;
            left_out = quantized::dequantize(json, &mut files, &stacks)?;
            gguf::translate(json.value(), &mut files)?;
            files.describes_itself = config_path == files.path();
            if !adapters.is_empty() {
                let plan = Plan::new(&family, &config, Some(json), &files);
                let plan = plan.map_err(|error| error.located(&config_path))?;
                let base = adapters::Base::new(&family, &config, &plan);
                (applied, brought) = adapters::apply(adapters, &base, json, &mut files)?;
            }
        }
        applied.extend(task_head.into_iter().chain(language));
        let planned = |files: &TensorFiles| {
            let plan = Plan::new(&family, &config, json.as_ref(), files);
            plan.map_err(|error| error.located(&config_path))
        };
        let mut plan = planned(&files)?;
        if let Some(json) = &json {
            let missing: Vec<_> = { plan.missing.iter() }
                .map(|m| (&*m.role, &*m.tried))
                .collect();
            let source = |role: &str| plan.sources.iter().find(|source| source.role == role);
            let stored = |role: &str| source(role).map(|of| (&*of.name, &*of.shape));
            if gguf::add_absent(json.value(), &mut files, &missing, stored)? {
                plan = planned(&files)?;
            }
        }
        plan.ignored.extend(left_out.tensors);
        plan.unrounded = left_out.unrounded;
        // With two stacks, the other one may have the embeddings.
        let is_whole = plan.model.is_some() && family.part.is_none();
        let is_placed = |brought: &Brought| {
            plan.sources
                .iter()
                .any(|s| s.names().any(|n| n == brought.name))
        };
        if let Some(lost) = brought.into_iter().find(|b| is_whole && !is_placed(b)) {
            return Err(lost.error);
        }
        let own = json.as_ref().filter(|_| files.gguf().is_none());
        plan.disputed_keys = own.map_or(Vec::new(), |json| keys::disputed::of(&family, json));
        if let (Some(json), Some(_)) = (own, &plan.model) {
            plan.unread_keys = keys::harmless::unknown(json);
            if plan::outside_blocks::lacks_head(&family, json)? {
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
            json: json.filter(|_| is_described || !applied.is_empty()),
            adapters: applied,
            other: None,
            is_joined: false,
            config_path: config_path.exists().then_some(config_path),
        })
    }
}

/// The files of a pretrained model: their family, the blocks' configuration, and the location of every parameter.
///
/// ```no_run
/// use candle_blocks::{Checkpoint, Weights, candle_core::{DType, Device, Tensor}};
/// let checkpoint = Checkpoint::open("all-MiniLM-L6-v2")?;
/// let block = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu)).block(0)?;
/// let x = Tensor::randn(0f32, 1., (1, 16, 384), &Device::Cpu)?;
/// println!("{}", block.forward(&x)?);
/// # Ok::<(), candle_blocks::Error>(())
/// ```
pub struct Checkpoint {
    files: TensorFiles,
    family: Family,
    config: StackConfig,
    plan: Plan,
    strictness: Strictness,
    /// [`Weights::Dense`] means [`Weights::AsStored`].
    keeps_quantized: bool,
    beside: FilesBeside,
    /// This is one of two stacks that make one model.
    is_joined: bool,
    /// The other stack.
    other: Option<SecondStack>,
    /// The `config.json`, if there is one.
    config_path: Option<PathBuf>,
    /// The configuration, if it is not that of the file: adapters have changed it, or it was given.
    json: Option<ConfigJson>,
    /// Adapters that are merged into the weights.
    adapters: Vec<AppliedAdapter>,
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoint")
            .field("path", &self.files.path())
            .field("family", &self.family.name)
            .finish_non_exhaustive()
    }
}

impl Checkpoint {
    /// Opens a directory, a single `.safetensors` file, or the index of a sharded checkpoint, together with the
    /// `config.json` beside it; or a `.gguf` file, which contains its configuration. Only reads headers, and biases that the
    /// model does not have, because zero biases are ignored.
    ///
    /// Quantized weights are dequantized to the requested dtype.
    ///
    /// # Errors
    /// If a file is missing or malformed, `model_type` is unknown, or the configuration is invalid. A missing tensor is an
    /// error only when it is loaded, but [`Self::report`] lists it before; shapes and dtypes are checked when a tensor is
    /// loaded.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        CheckpointOptions::default().open(path)
    }

    /// Downloads a repository from the Hugging Face Hub (`"owner/name"`, branch `main`) into the cache that Python's
    /// `huggingface_hub` uses too, and opens it. Use [`hub::Hub`] for another revision, token or cache.
    ///
    /// # Errors
    /// If the download fails, or as for [`Self::open`].
    #[cfg(feature = "hub")]
    pub fn from_hub(repo: impl Into<String>) -> Result<Self> {
        Self::open(hub::Hub::new(repo).download()?)
    }

    /// Returns the family's name, such as `"bert"`.
    pub fn family(&self) -> &str {
        &self.family.name
    }

    /// Returns the blocks' configuration, from `config.json`.
    pub fn config(&self) -> &StackConfig {
        &self.config
    }

    /// Returns the whole model's configuration.
    ///
    /// # Errors
    /// If the family does not define embeddings and heads, `config.json` lacks one of their keys, or the files contain no
    /// embeddings.
    pub fn model_config(&self) -> Result<&ModelConfig> {
        let reason = || match &self.plan.no_model {
            Some(Error::InvalidConfig(reason)) => reason.clone(),
            Some(error) => error.to_string(),
            None => "there is no config.json".to_string(),
        };
        let model = self.plan.model.as_ref();
        model.ok_or_else(|| Error::InvalidConfig(format!("no whole model: {}", reason())))
    }

    /// Returns the task of the class that `config.json` names, if the files lack the parameters of that class's head. The
    /// model then returns no logits.
    ///
    /// # Errors
    /// If `config.json` cannot be read.
    pub fn missing_head(&self) -> Result<Option<HeadTask>> {
        let (Some(json), Some(model)) = (self.config_json()?, &self.plan.model) else {
            return Ok(None);
        };
        let is_missing = |task: &HeadTask| model.head.is_none() && self.family.has_head(*task);
        Ok(plan::outside_blocks::task_of(&json)?.filter(is_missing))
    }

    /// Returns the `config.json`, if there is one.
    pub(crate) fn config_json(&self) -> Result<Option<ConfigJson>> {
        let opened = || self.config_path.as_deref().map(gguf::open_config);
        match &self.json {
            Some(json) => Ok(Some(json.clone())),
            None => opened().transpose(),
        }
    }

    /// Returns the tensors in the files, by their names on disk, including embeddings, heads and other tensors outside the
    /// blocks.
    pub fn files(&self) -> &TensorFiles {
        &self.files
    }

    /// Reports on every tensor: used, ignored, outside the blocks, unused or missing.
    pub fn report(&self) -> LoadReport {
        LoadReport::new(&self.plan, &self.files, &self.adapters)
    }

    /// Returns a loader for layers and models in this form. Each call of it reads the files anew.
    ///
    /// ```
    /// use candle_blocks::{Checkpoint, Precision, Weights, candle_core::{DType, Device}};
    /// let checkpoint = Checkpoint::open("weights/tiny-bert")?;
    /// let stack = checkpoint.load(Weights::Packed(Precision::F32)).stack()?; // the fastest form on a CPU
    /// let model = checkpoint.load(Weights::Dense(DType::F32, &Device::Cpu)).model()?; // any device, differentiable
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    pub fn load(&self, weights: Weights) -> Loader<'_> {
        Loader::new(self, weights)
    }

    /// Returns a loader with variables, for training, like `load(Weights::Dense(dtype, device))` with
    /// [`Loader::trainable`].
    ///
    /// # Errors
    /// If `dtype` is not a floating-point type that `device` supports, or the files contain unknown tensors and
    /// [`Strictness`] forbids them.
    pub fn trainable(&self, dtype: DType, device: &Device) -> Result<Loader<'_>> {
        let loader = self.load(Weights::Dense(dtype, device)).trainable();
        loader.check()?;
        Ok(loader)
    }

    /// Returns the blocks' tensors that contain NaN or infinity, each with the index of the first such element.
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

    /// Returns the shape of a parameter in the blocks, by role.
    pub(crate) fn shape_of(&self, role: &str) -> Option<&[usize]> {
        let source = self.plan.source(role);
        source.map(|source| source.shape.as_slice())
    }

    /// Converts tensors by role (`blocks.0.feed_forward.up.weight`), such as gradients, to the files' names and layouts, in
    /// the order of the layers.
    ///
    /// # Errors
    /// If a role is not one of this checkpoint's parameters, a tensor has the wrong number of output features, some but not
    /// all roles of a fused tensor are present, or two roles share the same features.
    pub fn to_disk(&self, by_role: &HashMap<String, Tensor>) -> Result<Vec<(String, Tensor)>> {
        loader::disk::to_disk(&self.plan, by_role)
    }

    /// Saves a copy of this checkpoint, with the given parameters replaced, to a new directory;
    /// [`SaveOptions::save`] has options.
    ///
    /// # Errors
    /// Errors as for [`SaveOptions::save`].
    pub fn save(
        &self,
        directory: impl AsRef<Path>,
        parameters: impl IntoIterator<Item = (impl AsRef<str>, impl AsTensor)>,
    ) -> Result<()> {
        SaveOptions::default().save(self, directory, parameters)
    }
}
