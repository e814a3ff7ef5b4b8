//! Adapters from Hugging Face's PEFT library: `adapter_config.json` and `adapter_model.safetensors` or `.bin`, read together
//! with a base model.
//!
//! An adapter is merged into the base model's tensors while they are read: `W + alpha/r · B·A`, one tensor at a time.
//! Families and layers do not know about it.

mod apply;
mod config;
mod experts;
mod merged;
mod modules;
mod names;
mod parameters;
mod product_layout;
mod stacked;
mod tensors;

use std::path::{Path, PathBuf};

pub(super) use self::apply::{Base, Brought, apply};
use self::config::AdapterConfig;
pub(crate) use self::experts::{AssumedOrientation, ExpertMatrix, ExpertPart};
use crate::checkpoint::CheckpointOptions;
use crate::checkpoint::files::{PICKLE, PICKLE_INDEX, TensorFiles, is_named};
use crate::error::{Error, Result};
pub(crate) use config::base::PeftBase;
pub(super) use config::languages::apply as apply_language;
pub(super) use config::tasks::{Task, apply as apply_task};

/// The file that describes an adapter.
pub(super) const CONFIG: &str = "adapter_config.json";
/// Names of the file with the adapter's tensors. PEFT reads the first that exists.
const WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];

/// An adapter's files.
#[derive(Debug)]
pub(super) struct Adapter {
    directory: PathBuf,
    config: AdapterConfig,
    files: TensorFiles,
    /// The adapter was found beside the weights, not requested.
    is_beside: bool,
}

impl Adapter {
    /// Opens an adapter's directory, or one of its two files.
    ///
    /// # Errors
    /// If a file is missing or damaged, or this kind of adapter is not supported.
    pub fn open(path: &Path) -> Result<Self> {
        let directory = match path.is_file() {
            true => path.parent().unwrap_or(Path::new("")),
            false => path,
        };
        let config = directory.join(CONFIG);
        if !config.exists() {
            return Err(Error::input(
                directory.display().to_string(),
                format!(
                    "there is no {CONFIG}; give the folder that PEFT's `save_pretrained` wrote"
                ),
            ));
        }
        let config = AdapterConfig::open(&config)?;
        let mut weights = WEIGHTS.iter().map(|name| directory.join(name));
        let weights = weights.find(|path| is_named(path));
        let weights = weights.ok_or_else(|| Error::NoWeights {
            path: directory.to_path_buf(),
            reason: format!(
                "{} should be beside {CONFIG}, but is missing; write the adapter with PEFT's `save_pretrained`",
                WEIGHTS.join(" or ")
            ),
        })?;
        Ok(Self {
            directory: directory.to_path_buf(),
            config,
            files: TensorFiles::open(weights)?,
            is_beside: false,
        })
    }

    /// Returns the base model that the adapter names, if that is a local directory.
    pub fn local_base(&self) -> Result<Option<PathBuf>> {
        let base = self.config.base()?.map(PathBuf::from);
        Ok(base.filter(|base| base.join("config.json").is_file() && !self.is_in(base)))
    }

    /// Returns whether the adapter is in this directory.
    pub fn is_in(&self, directory: &Path) -> bool {
        let canonical = |path: &Path| match path.as_os_str().is_empty() {
            true => Path::new(".").canonicalize(),
            false => path.canonicalize(),
        };
        let own = canonical(&self.directory);
        own.is_ok_and(|own| canonical(directory).is_ok_and(|other| other == own))
    }

    /// # Errors
    /// Returns the error for an adapter that was given instead of a model.
    pub fn without_base(&self) -> Result<Error> {
        let base = match self.config.base()? {
            Some(base) => format!("its {CONFIG} names the base model {base:?}"),
            None => format!("its {CONFIG} names no base model"),
        };
        Ok(Error::NoWeights {
            path: self.directory.clone(),
            reason: format!(
                "it contains a PEFT adapter without the base model and its config.json; {base}: \
                 open that model with this adapter (`--adapter` or \
                 `CheckpointOptions::adapter`), or merge the two in Python with \
                 `merge_and_unload()`"
            ),
        })
    }

    /// Opens the adapter beside the weights.
    ///
    /// # Errors
    /// The errors of [`Self::open`]; also if it names another base model, because the weights may include the adapter
    /// already.
    fn beside(directory: &Path) -> Result<Self> {
        let adapter = Self {
            is_beside: true,
            ..Self::open(directory)?
        };
        adapter.check_own()?;
        Ok(adapter)
    }

    fn check_own(&self) -> Result<()> {
        let Some(base) = self.config.base()? else {
            return Ok(());
        };
        let name = |path: &Path| path.file_name().map(|name| name.to_owned());
        let directory = self.directory.canonicalize().unwrap_or_default();
        let is_own = self.is_in(Path::new(&base)) || name(Path::new(&base)) == name(&directory);
        if is_own {
            return Ok(());
        }
        Err(self.config.json.error(
            &["base_model_name_or_path"],
            format!(
                "the adapter beside these weights was trained on {base:?}; these weights may be \
                 that model, or may include the adapter already; to apply it, also give this \
                 folder as `--adapter` or `CheckpointOptions::adapter`; otherwise move \
                 {CONFIG} away"
            ),
        ))
    }
}

impl CheckpointOptions {
    /// Returns the requested adapters, preceded by the one beside the weights, if there is one.
    pub(super) fn adapters_beside(&self, files: &TensorFiles) -> Result<Vec<Adapter>> {
        let opened = self.adapters.iter().map(|path| Adapter::open(path));
        let mut all = opened.collect::<Result<Vec<_>>>()?;
        let directory = files.directory();
        if is_in(directory) && !all.iter().any(|adapter| adapter.is_in(directory)) {
            all.insert(0, Adapter::beside(directory)?);
        }
        Ok(all)
    }
}

/// Returns whether this directory contains an adapter.
fn is_in(directory: &Path) -> bool {
    is_named(&directory.join(CONFIG))
}

/// Returns the adapter that was given instead of a model: a directory without other weights, or the adapter's own file.
/// Other weights are a model only with a `config.json`, as in transformers; `given` is a separate `config.json`.
pub(super) fn alone<'p>(path: &'p Path, given: Option<&Path>) -> Option<&'p Path> {
    let is_of = |path: &Path, name: &str| path.file_name().is_some_and(|found| found == name);
    if path.is_file() {
        let is_one = is_of(path, CONFIG) || WEIGHTS.iter().any(|name| is_of(path, name));
        return path.parent().filter(|directory| is_one && is_in(directory));
    }
    if !is_in(path) {
        return None;
    }
    let has_config = given.is_some() || is_named(&path.join("config.json"));
    let is_torch = |path: &Path| [PICKLE, PICKLE_INDEX].iter().any(|name| is_of(path, name));
    let is_model = |path: &Path| match path.extension().and_then(|end| end.to_str()) {
        Some("gguf") => true,
        Some("safetensors") => has_config && !is_of(path, WEIGHTS[0]),
        _ => has_config && is_torch(path),
    };
    let entries = std::fs::read_dir(path).ok()?;
    let has_model = entries.flatten().any(|entry| is_model(&entry.path()));
    (!has_model).then_some(path)
}
