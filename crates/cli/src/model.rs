//! Options for loading a model, and for the device, dtype and packing.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::{
    AppliedAdapter, Conversion, FilesBeside, UsedTensor, scheme::StackPart,
};
use candle_blocks::device::check_dtype;
#[cfg(feature = "media")]
use candle_blocks::pictures::ImageOptions;
use candle_blocks::text::TextOptions;
use candle_blocks::trace::TraceInput;
use candle_blocks::{Checkpoint, CheckpointOptions, Error, Precision, Strictness, Weights, trace};
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::download;
use crate::output::{self, Escaped};
use crate::texts::TextArgs;

/// The checkpoint to load.
#[derive(clap::Args)]
#[command(next_help_heading = "Model")]
pub struct ModelArgs {
    /// The checkpoint: a directory, a .safetensors, .gguf or .bin file, or a .index.json.
    #[arg(long, short, value_name = "PATH")]
    model: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
}

impl ModelArgs {
    /// Opens the checkpoint; if it has two stacks, opens both unless --part selects one.
    pub fn open(&self) -> Result<Checkpoint> {
        let checkpoint = self.options().whole().open(self.path()?)?;
        self.source.note_unused(&checkpoint);
        note_adapters(&checkpoint.report().adapters);
        Ok(checkpoint)
    }

    /// Prints notes about unread keys and tensors of the checkpoint at `path`, which `TextOptions` opens itself.
    pub fn note_unread(&self, path: &Path) {
        if let Ok(checkpoint) = self.options().whole().open(path) {
            note_unread(&checkpoint);
        }
    }

    /// Returns the path of the checkpoint, downloaded if necessary.
    pub fn path(&self) -> Result<PathBuf> {
        self.source.path(self.model.as_ref(), "--model PATH")
    }

    /// Downloads one more file of a repository on the Hub, if the checkpoint is from there.
    pub fn fetch(&self, name: &str) -> Result<()> {
        match &self.source.hub {
            Some(repo) => download::file(repo, &self.source.revision, name),
            None => Ok(()),
        }
    }

    /// Prints a note about files beside a GGUF file that are not read.
    pub fn note_beside(checkpoint: &Checkpoint) -> Result<()> {
        let ignored = checkpoint.ignored_beside()?;
        if !ignored.is_empty() {
            output::warn(format_args!(
                "note: {} contains the data of {} beside it, which are not read; --files-beside reads these instead",
                checkpoint.files().path().display(),
                ignored.join(", ")
            ));
        }
        Ok(())
    }

    /// Returns the options for opening the checkpoint.
    pub fn options(&self) -> CheckpointOptions {
        self.source.options()
    }

    /// Returns the files that other options name.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let SourceArgs {
            config,
            family,
            adapter,
            ..
        } = &self.source;
        let given = [config, family].into_iter().flatten();
        given.chain(adapter).map(PathBuf::as_path)
    }
}

/// Other sources for a checkpoint, its configuration and its adapters.
#[derive(clap::Args)]
#[command(next_help_heading = "Model")]
pub struct SourceArgs {
    /// A repository on the Hugging Face Hub, instead of a path.
    #[arg(long, value_name = "OWNER/NAME")]
    hub: Option<String>,
    /// The branch, tag or commit of the repository.
    #[arg(long, default_value = "main", requires = "hub")]
    revision: String,
    /// A config.json to use instead of the one beside the weights.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A JSON file that describes a model family which is not built in (docs/new-family.md).
    #[arg(long, value_name = "FILE")]
    family: Option<PathBuf>,
    /// Read the tokenizer, the chat template and generation_config.json from files beside a GGUF file, not from the GGUF
    /// file.
    #[arg(long)]
    files_beside: bool,
    /// The stack to use, if a checkpoint has several. Without this option, a whole model runs both.
    #[arg(long, value_parser = names(&["encoder", "decoder", "text", "vision"])
        .try_map(|name| serde_json::from_value::<StackPart>(name.into())))]
    part: Option<StackPart>,
    /// Leave out tensors that the model family does not know, and print their names in a note.
    #[arg(long)]
    allow_unused: bool,
    /// A directory with a PEFT adapter (adapter_config.json) to apply, which may be given several times; or the name of a task
    /// whose adapter is in the model's own files (Jina Embeddings v3).
    #[arg(long, value_name = "DIR")]
    adapter: Vec<PathBuf>,
}

/// Prints notes about unread keys in config.json, about keys that transformers' attentions follow differently, about unread
/// tensors, and about a rounding that is not followed.
fn note_unread(checkpoint: &Checkpoint) {
    let quoted = |key: &String| format!("{key:?}");
    let report = checkpoint.report();
    let unread = report.unread_keys.iter();
    let (heads, keys): (Vec<_>, Vec<_>) = unread.partition(|key| *key == "architectures");
    if !heads.is_empty() {
        output::warn(
            "note: \"architectures\" in config.json names a class whose head this program does not have; there are no logits",
        );
    }
    let keys: Vec<String> = keys.into_iter().map(quoted).collect();
    if !keys.is_empty() {
        output::warn(format_args!(
            "note: config.json has keys that are not read: {}",
            Escaped(&keys.join(", "))
        ));
    }
    if !report.disputed_keys.is_empty() {
        output::warn(format_args!(
            "note: config.json has keys for which transformers' results depend on attn_implementation: {}",
            Escaped(&report.disputed_keys.join(", "))
        ));
    }
    if !report.unread.is_empty() {
        output::warn(format_args!(
            "note: {} tensor(s) that no part of the model reads are left out: {}",
            report.unread.len(),
            Escaped(&report.unread.join(", "))
        ));
    }
    if !report.unrounded.is_empty() {
        output::warn(format_args!(
            "note: activations and caches are computed without rounding; the file's method rounds them by {}",
            Escaped(&report.unrounded.join(", "))
        ));
    }
}

pub fn names(names: &'static [&'static str]) -> PossibleValuesParser {
    PossibleValuesParser::new(names)
}

impl SourceArgs {
    /// Returns whether any option is given.
    pub fn is_given(&self) -> bool {
        let others = [
            self.config.is_some(),
            self.family.is_some(),
            self.allow_unused,
            !self.adapter.is_empty(),
        ];
        self.hub.is_some() || self.part.is_some() || others.contains(&true)
    }

    /// Returns the path given with --config, if any.
    pub fn config(&self) -> Option<&PathBuf> {
        self.config.as_ref()
    }

    /// Opens the checkpoint at `path`, or from the Hub; `name` is the option for the path in messages.
    pub fn open(&self, path: Option<&PathBuf>, name: &str) -> Result<Checkpoint> {
        let checkpoint = self.options().open(self.path(path, name)?)?;
        self.note_unused(&checkpoint);
        note_adapters(&checkpoint.report().adapters);
        Ok(checkpoint)
    }

    fn path(&self, path: Option<&PathBuf>, name: &str) -> Result<PathBuf> {
        match (path, &self.hub) {
            (Some(path), None) => Ok(path.clone()),
            (None, Some(repo)) => download::download(repo, &self.revision),
            _ => bail!("give either {name} or --hub OWNER/NAME"),
        }
    }

    fn options(&self) -> CheckpointOptions {
        let mut options = CheckpointOptions::default();
        if self.files_beside {
            options = options.beside(FilesBeside::First);
        }
        if let Some(config) = &self.config {
            options = options.config(config);
        }
        if let Some(family) = &self.family {
            options = options.family_file(family);
        }
        if let Some(part) = self.part {
            options = options.part(part);
        }
        if self.allow_unused {
            options = options.strictness(Strictness::AllowUnused);
        }
        self.adapter
            .iter()
            .fold(options, CheckpointOptions::adapter)
    }

    /// Prints notes about tensors that are left out, and about unread keys.
    fn note_unused(&self, checkpoint: &Checkpoint) {
        note_unread(checkpoint);
        let unused = checkpoint.report().unused;
        if self.allow_unused && !unused.is_empty() {
            output::warn(format_args!(
                "note: {} tensor(s) that {} does not know are left out: {}",
                unused.len(),
                checkpoint.family(),
                unused.join(", ")
            ));
        }
    }
}

/// Prints notes about adapters that were applied automatically, and about adapter keys that are not followed.
pub fn note_adapters(adapters: &[AppliedAdapter]) {
    for adapter in adapters {
        let directory = adapter.directory.display();
        if adapter.is_beside {
            output::warn(format_args!(
                "note: the adapter beside the weights in {directory} (adapter_config.json) is applied to them"
            ));
        }
        if !adapter.unread.is_empty() {
            output::warn(format_args!(
                "note: {directory}: adapter_config.json has unknown keys, which are not followed: {}",
                adapter.unread.join(", ")
            ));
        }
    }
}

/// The device, dtype and packing.
#[derive(clap::Args)]
#[command(next_help_heading = "Computation")]
pub struct ComputeArgs {
    /// The device to compute on.
    #[arg(long, value_enum, default_value_t = DeviceName::Cpu)]
    device: DeviceName,
    /// The dtype of weights and activations.
    #[arg(long, default_value = "f32", value_parser = names(&["f32", "bf16", "f16", "f64"])
        .try_map(|name| name.parse::<DType>()))]
    pub dtype: DType,
    /// The precision in which weights are packed for the CPU; `none` leaves them unpacked. [default: f32 with --device cpu and
    /// --dtype f32, without --backward; otherwise none]
    #[arg(long, value_parser = precisions())]
    precision: Option<String>,
}

/// The form of the weights.
#[derive(Clone, Copy)]
pub enum Form {
    Plain,
    Packed(Precision),
}

impl ComputeArgs {
    pub fn device(&self) -> Result<Device> {
        let device = match self.device {
            DeviceName::Cpu => Ok(Device::Cpu),
            DeviceName::Cuda => Device::new_cuda(0)
                .context("--device cuda needs an NVIDIA GPU and a build with `--features cuda`"),
            DeviceName::Metal => Device::new_metal(0)
                .context("--device metal needs an Apple GPU and a build with `--features metal`"),
        }?;
        check_dtype(self.dtype, &device)?;
        Ok(device)
    }

    /// Returns the form of the weights for a run with or without gradients.
    pub fn form(&self, backward: bool) -> Result<Form> {
        let is_default =
            matches!((self.device, self.dtype), (DeviceName::Cpu, DType::F32)) && !backward;
        let packing = match &self.precision {
            None if is_default => Some(Precision::F32),
            None => None,
            Some(name) => packing(name),
        };
        let Some(packed) = packing else {
            return Ok(Form::Plain);
        };
        if !matches!(self.device, DeviceName::Cpu) {
            bail!(
                "--precision packs weights for the CPU; give --precision none with another --device"
            );
        }
        if self.dtype == DType::F64 {
            bail!(
                "--precision packs weights that compute in f32; give --precision none with --dtype f64"
            );
        }
        if backward {
            bail!(
                "--precision packs weights, which then have no gradient; give --precision none with --backward"
            );
        }
        Ok(Form::Packed(packed))
    }

    /// Returns the form of the weights on this device, for a run without gradients.
    pub fn weights<'d>(&self, device: &'d Device) -> Result<Weights<'d>> {
        Ok(match self.form(false)? {
            Form::Packed(precision) => Weights::Packed(precision),
            Form::Plain => Weights::Dense(self.dtype, device),
        })
    }

    /// Prints a note about matrices that are not packed as they are stored, if they should be.
    pub fn note_not_as_stored(&self, checkpoint: &Checkpoint) -> Result<()> {
        if let Form::Packed(Precision::AsStored) = self.form(false)? {
            let path = checkpoint.files().path().display();
            for of_type in checkpoint.report().not_as_stored {
                output::warn(format_args!("note: {path}: {of_type}"));
            }
        }
        Ok(())
    }

    /// Prints a note if quantized weights are dequantized although no option asks for it.
    pub fn note_dequantized(&self, checkpoint: &Checkpoint) -> Result<()> {
        let Form::Packed(Precision::F32) = self.form(false)? else {
            return Ok(());
        };
        let is_dequantized =
            |tensor: &UsedTensor| tensor.conversions.contains(&Conversion::Dequantized);
        if self.precision.is_none() && checkpoint.report().used.iter().any(is_dequantized) {
            output::warn(format_args!(
                "note: {}: its quantized weights are dequantized to f32; `--precision as-stored` computes with them in \
                 less memory and time, and rounds activations",
                checkpoint.files().path().display()
            ));
        }
        Ok(())
    }

    /// Returns the options for loading a model that reads texts.
    pub fn text_options(&self, model: &ModelArgs, texts: &TextArgs) -> Result<TextOptions> {
        let device = self.device()?;
        // A GLiNER model says so itself.
        if model.source.allow_unused && !model.path()?.join("gliner_config.json").exists() {
            model.open()?; // reads headers alone, and says what is left out
        }
        let mut options = TextOptions::default().checkpoint(model.options());
        if let Some(max_length) = texts.max_length {
            options = options.max_length(max_length);
        }
        Ok(match self.form(false)? {
            Form::Packed(precision) => options.precision(precision),
            Form::Plain => options.device(self.dtype, &device),
        })
    }

    /// Returns the options for loading a model that reads images.
    #[cfg(feature = "media")]
    pub fn image_options(&self, model: &ModelArgs) -> Result<ImageOptions> {
        let device = self.device()?;
        if model.source.allow_unused {
            model.open()?; // reads headers alone, and says what is left out
        }
        let options = ImageOptions::default().checkpoint(model.options());
        Ok(match self.form(false)? {
            Form::Packed(precision) => options.precision(precision),
            Form::Plain => options.device(self.dtype, &device),
        })
    }

    /// Runs a checkpoint on an input and returns every stage, and the gradients if `backward`, as tensors on the CPU, which
    /// converts every type.
    pub fn stages(
        &self,
        device: &Device,
        checkpoint: &Checkpoint,
        input: &TraceInput,
        backward: bool,
        path: &Path,
    ) -> Result<Vec<(String, Tensor)>> {
        let dtype = self.dtype;
        if !backward {
            self.note_not_as_stored(checkpoint)?;
        }
        let stages = match self.form(backward)? {
            Form::Packed(precision) => trace::run_packed(checkpoint, input, dtype, precision),
            Form::Plain if backward => trace::run_backward(checkpoint, input, dtype, device),
            Form::Plain => trace::run(checkpoint, input, dtype, device),
        };
        let stages = stages.map_err(|error| match error {
            // It knows only the tensor's name; what a layer refuses comes by way of candle.
            Error::InvalidInput { .. } | Error::Candle(_) => {
                anyhow::Error::new(error).context(path.display().to_string())
            }
            other => other.into(),
        })?;
        let on_cpu = |(name, stage): (String, Tensor)| Ok((name, stage.to_device(&Device::Cpu)?));
        stages.into_iter().map(on_cpu).collect()
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum DeviceName {
    Cpu,
    Cuda,
    Metal,
}

/// The names for packing precisions. A suffix of int4 is the group size.
pub fn precisions() -> PossibleValuesParser {
    names(&[
        "none",
        "f32",
        "f16",
        "bf16",
        "int8",
        "int4",
        "int4-32",
        "int4-128",
        "as-stored",
    ])
}

/// Returns the precision for a name; `None` for `none`.
pub fn packing(name: &str) -> Option<Precision> {
    match name.strip_prefix("int4-") {
        Some(group) => {
            let group = serde_json::from_str(group).ok()?;
            Some(Precision::Int4 { group })
        }
        None if name == "int4" => Some(Precision::INT4),
        None => serde_json::from_value(name.replace('-', "_").into()).ok(),
    }
}
