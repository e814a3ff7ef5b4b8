//! Options that say which model to load, and where and how to compute.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_blocks::candle_core::{DType, Device, Tensor};
use candle_blocks::checkpoint::{AppliedAdapter, Beside, scheme::StackPart};
use candle_blocks::device::check_dtype;
use candle_blocks::text::TextOptions;
use candle_blocks::trace::TraceInput;
use candle_blocks::{Checkpoint, CheckpointOptions, Error, Precision, Strictness, trace};
use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::download;
use crate::output::{self, Escaped};
use crate::texts::TextArgs;

/// The checkpoint to load.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// Checkpoint: a directory, a .safetensors or .gguf file, or a .safetensors.index.json.
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
}

impl ModelArgs {
    /// Opens the checkpoint, of two stacks both, unless one is chosen.
    pub fn open(&self) -> Result<Checkpoint> {
        let checkpoint = self.options().whole().open(self.path()?)?;
        self.source.note_unused(&checkpoint);
        note_adapters(&checkpoint.report().adapters);
        Ok(checkpoint)
    }

    /// Says what nothing reads of the config.json beside the weights at `path`, which a reader of texts opens itself.
    pub fn note_unread_keys(&self, path: &Path) {
        if let Ok(checkpoint) = self.options().whole().open(path) {
            note_unread_keys(&checkpoint);
        }
    }

    /// Where the checkpoint is, downloaded if need be.
    pub fn path(&self) -> Result<PathBuf> {
        self.source.path(self.model.as_ref(), "--model PATH")
    }

    /// Says which files beside a GGUF file are not read.
    pub fn note_beside(checkpoint: &Checkpoint) -> Result<()> {
        let ignored = checkpoint.ignored_beside()?;
        if !ignored.is_empty() {
            output::warn(format_args!(
                "note: {} says itself what {} beside it would say; --files-beside takes these instead",
                checkpoint.files().path().display(),
                ignored.join(", ")
            ));
        }
        Ok(())
    }

    /// How to open it.
    pub fn options(&self) -> CheckpointOptions {
        self.source.options()
    }

    /// The files that are named beside the weights.
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

/// Where else a checkpoint, or its configuration, may come from.
#[derive(clap::Args)]
pub struct SourceArgs {
    /// A repository on the Hugging Face Hub, instead of a path.
    #[arg(long, value_name = "OWNER/NAME")]
    hub: Option<String>,
    /// The branch, tag or commit of the repository.
    #[arg(long, default_value = "main", requires = "hub")]
    revision: String,
    /// The config.json to use instead of the one beside the weights.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A JSON file that describes a family which the program does not know (see `Family::from_json_file`).
    #[arg(long, value_name = "FILE")]
    family: Option<PathBuf>,
    /// Take the tokenizer, the chat template and the settings of generation from files beside a GGUF file instead of what it
    /// says itself.
    #[arg(long)]
    files_beside: bool,
    /// Which stack to use of a checkpoint that contains several. A whole model runs both where none is chosen.
    #[arg(long, value_parser = names(&["encoder", "decoder", "text", "vision"])
        .try_map(|name| serde_json::from_value::<StackPart>(name.into())))]
    part: Option<StackPart>,
    /// Leave out tensors of the files that the model does not know, and name them in a note.
    #[arg(long)]
    allow_unused: bool,
    /// A directory with an adapter of PEFT (adapter_config.json) to apply; may be given several times.
    #[arg(long, value_name = "DIR")]
    adapter: Vec<PathBuf>,
}

/// Says what nothing reads of the config.json.
fn note_unread_keys(checkpoint: &Checkpoint) {
    let quoted = |key: &String| format!("{key:?}");
    let report = checkpoint.report();
    let unread = report.unread_keys.iter();
    let (heads, keys): (Vec<_>, Vec<_>) = unread.partition(|key| *key == "architectures");
    if !heads.is_empty() {
        output::warn(
            "note: \"architectures\" in config.json names a class whose head is not known here; the output has no logits of it",
        );
    }
    let keys: Vec<String> = keys.into_iter().map(quoted).collect();
    if !keys.is_empty() {
        output::warn(format_args!(
            "note: config.json has keys that nothing here reads: {}",
            Escaped(&keys.join(", "))
        ));
    }
}

pub fn names(names: &'static [&'static str]) -> PossibleValuesParser {
    PossibleValuesParser::new(names)
}

impl SourceArgs {
    /// Whether any of them is there.
    pub fn is_given(&self) -> bool {
        let others = [
            self.config.is_some(),
            self.family.is_some(),
            self.allow_unused,
            !self.adapter.is_empty(),
        ];
        self.hub.is_some() || self.part.is_some() || others.contains(&true)
    }

    /// The config.json that is given, if any.
    pub fn config(&self) -> Option<&PathBuf> {
        self.config.as_ref()
    }

    /// Opens the checkpoint at `path`, which the user gives as `name`, or on the Hub.
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
            options = options.beside(Beside::First);
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

    /// Names the tensors that are left out, and the keys that nothing reads.
    fn note_unused(&self, checkpoint: &Checkpoint) {
        note_unread_keys(checkpoint);
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

/// Says which adapters were applied that were not asked for, and what of any was not followed.
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
                "note: {directory}: adapter_config.json has {}, which is not known and not followed",
                adapter.unread.join(", ")
            ));
        }
    }
}

/// Where and how to compute.
#[derive(clap::Args)]
pub struct ComputeArgs {
    /// The device to compute on.
    #[arg(long, value_enum, default_value_t = DeviceName::Cpu)]
    device: DeviceName,
    /// The dtype of weights and activations.
    #[arg(long, default_value = "f32", value_parser = names(&["f32", "bf16", "f16", "f64"])
        .try_map(|name| name.parse::<DType>()))]
    pub dtype: DType,
    /// How to pack the weights for the CPU; `none` leaves them unpacked. The default is f32 with --device cpu, --dtype f32
    /// and without --backward, otherwise none.
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

    /// How to hold the weights for a run with gradients or without.
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

    /// How a model that reads these texts is loaded.
    pub fn text_options(&self, model: &ModelArgs, texts: &TextArgs) -> Result<TextOptions> {
        let device = self.device()?;
        if model.source.allow_unused {
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

    /// Runs a checkpoint on an input and returns every stage, and the gradients if `backward`; on the CPU, which converts
    /// every type and is where they are written and compared.
    pub fn stages(
        &self,
        device: &Device,
        checkpoint: &Checkpoint,
        input: &TraceInput,
        backward: bool,
        path: &Path,
    ) -> Result<Vec<(String, Tensor)>> {
        let dtype = self.dtype;
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

/// The names of the forms of weights. int4 may say how many weights are in a group.
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

/// How to pack by one of these names, if at all.
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
