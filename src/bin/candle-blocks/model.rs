//! Options that say which model to load, and where and how to compute.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use candle_blocks::{
    Checkpoint, CheckpointOptions, Precision,
    candle_core::{DType, Device},
    checkpoint::scheme::StackPart,
};
use clap::ValueEnum;

use crate::download;

/// The checkpoint to load.
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

    /// The files that are named beside the weights.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let SourceArgs { config, family, .. } = &self.source;
        [config, family].into_iter().flatten().map(PathBuf::as_path)
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
    /// Which stack to use of a checkpoint that contains several.
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

    /// The config.json that is given, if any.
    pub fn config(&self) -> Option<&PathBuf> {
        self.config.as_ref()
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
    /// The device to compute on.
    #[arg(long, value_enum, default_value_t = DeviceName::Cpu)]
    device: DeviceName,
    /// The dtype of weights and activations.
    #[arg(long, value_enum, default_value_t = DTypeName::F32)]
    dtype: DTypeName,
    /// How to pack the weights for the CPU; `none` leaves them unpacked. The default is f32 with --device cpu, --dtype f32
    /// and without --backward, otherwise none.
    #[arg(long, value_enum)]
    precision: Option<PrecisionName>,
}

/// The form of the weights.
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
        let packing = match self.precision {
            None if is_default => Some(Precision::F32),
            None => None,
            Some(name) => name.packing(),
        };
        let Some(packed) = packing else {
            return Ok(Form::Plain);
        };
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
        Ok(Form::Packed(packed))
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

/// The form of the weights.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
pub enum PrecisionName {
    None,
    F32,
    Bf16,
    Int8,
}

impl PrecisionName {
    /// How to pack, if at all.
    pub fn packing(self) -> Option<Precision> {
        match self {
            Self::None => None,
            Self::F32 => Some(Precision::F32),
            Self::Bf16 => Some(Precision::Bf16),
            Self::Int8 => Some(Precision::Int8),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}
