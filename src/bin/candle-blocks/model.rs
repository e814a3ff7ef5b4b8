//! Options that say which model to load, and where and how to compute.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use candle_blocks::{
    Checkpoint, CheckpointOptions, Precision, StackPart,
    candle_core::{DType, Device},
};
use clap::ValueEnum;

use crate::download;

/// Which checkpoint.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// Checkpoint: a directory, a .safetensors file or a .safetensors.index.json.
    #[arg(long, value_name = "PATH")]
    model: Option<PathBuf>,
    #[command(flatten)]
    source: SourceArgs,
}

impl ModelArgs {
    pub fn open(&self) -> Result<Checkpoint> {
        self.source.open(self.model.as_ref(), "--model PATH")
    }
}

/// Where else a checkpoint, or its configuration, may come from.
#[derive(clap::Args)]
pub struct SourceArgs {
    /// A repository of the Hugging Face Hub instead of a path.
    #[arg(long, value_name = "OWNER/NAME")]
    hub: Option<String>,
    /// Branch, tag or commit of the repository.
    #[arg(long, default_value = "main", requires = "hub")]
    revision: String,
    /// The config.json to use instead of the one beside the weights.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A JSON file with a table of your own, for a family that is not known.
    #[arg(long, value_name = "FILE")]
    family: Option<PathBuf>,
    /// The stack of a checkpoint that holds several.
    #[arg(long, value_enum)]
    part: Option<PartName>,
}

#[derive(Clone, Copy, ValueEnum)]
enum PartName {
    Encoder,
    Decoder,
    Text,
    Vision,
}

impl From<PartName> for StackPart {
    fn from(name: PartName) -> Self {
        match name {
            PartName::Encoder => Self::Encoder,
            PartName::Decoder => Self::Decoder,
            PartName::Text => Self::Text,
            PartName::Vision => Self::Vision,
        }
    }
}

impl SourceArgs {
    /// Whether any of them is there.
    pub fn is_given(&self) -> bool {
        let paths = [self.config.is_some(), self.family.is_some()];
        self.hub.is_some() || self.part.is_some() || paths.contains(&true)
    }

    /// Opens the checkpoint at `path`, which the user gives as `name`, or on the Hub.
    pub fn open(&self, path: Option<&PathBuf>, name: &str) -> Result<Checkpoint> {
        let path = match (path, &self.hub) {
            (Some(path), None) => path.clone(),
            (None, Some(repo)) => download::download(repo, &self.revision)?,
            _ => bail!("give either {name} or --hub OWNER/NAME"),
        };
        let mut options = CheckpointOptions::default();
        if let Some(config) = &self.config {
            options = options.config(config);
        }
        if let Some(family) = &self.family {
            options = options.family_file(family);
        }
        if let Some(part) = self.part {
            options = options.part(part.into());
        }
        Ok(options.open(path)?)
    }
}

/// Where and how to compute.
#[derive(clap::Args)]
pub struct ComputeArgs {
    /// Where to compute.
    #[arg(long, value_enum, default_value_t = DeviceName::Cpu)]
    device: DeviceName,
    /// The type of weights and activations.
    #[arg(long, value_enum, default_value_t = DTypeName::F32)]
    dtype: DTypeName,
    /// The packed form of the weights, for the CPU; `none` is not packed. The default is f32 where --device is cpu, --dtype
    /// f32 and no gradient asked for, else none.
    #[arg(long, value_enum)]
    precision: Option<PrecisionName>,
}

/// How the weights are held.
#[derive(Clone, Copy)]
pub enum Form {
    Plain,
    Packed(Precision),
}

impl ComputeArgs {
    pub fn device(&self) -> Result<Device> {
        match self.device {
            DeviceName::Cpu => Ok(Device::Cpu),
            DeviceName::Cuda => Device::new_cuda(0)
                .context("--device cuda needs an NVIDIA GPU and a build with `--features cuda`"),
            DeviceName::Metal => Device::new_metal(0)
                .context("--device metal needs an Apple GPU and a build with `--features metal`"),
        }
    }

    /// How to hold the weights for a run with gradients or without.
    pub fn form(&self, backward: bool) -> Result<Form> {
        let is_default =
            matches!((self.device, self.dtype), (DeviceName::Cpu, DTypeName::F32)) && !backward;
        let form = match self.precision {
            None if is_default => Form::Packed(Precision::F32),
            None => Form::Plain,
            Some(name) => name.form(),
        };
        if let Form::Plain = form {
            return Ok(form);
        }
        if !matches!(self.device, DeviceName::Cpu) {
            bail!(
                "--precision packs weights for the CPU; give --precision none with another --device"
            );
        }
        if matches!(self.dtype, DTypeName::F64) {
            bail!(
                "--precision packs weights that compute in f32; give --precision none with --dtype f64"
            );
        }
        if backward {
            bail!(
                "--precision packs weights, which then have no gradient; give --precision none with --backward"
            );
        }
        Ok(form)
    }

    pub fn dtype(&self) -> DType {
        match self.dtype {
            DTypeName::F32 => DType::F32,
            DTypeName::Bf16 => DType::BF16,
            DTypeName::F16 => DType::F16,
            DTypeName::F64 => DType::F64,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum DeviceName {
    Cpu,
    Cuda,
    Metal,
}

#[derive(Clone, Copy, ValueEnum)]
enum DTypeName {
    F32,
    Bf16,
    F16,
    F64,
}

/// How the weights are held, by name.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum PrecisionName {
    F32,
    None,
}

impl PrecisionName {
    pub fn form(self) -> Form {
        match self {
            Self::F32 => Form::Packed(Precision::F32),
            Self::None => Form::Plain,
        }
    }
}
