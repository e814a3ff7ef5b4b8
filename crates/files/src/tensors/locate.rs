//! Finds the files that a path means: the file in a directory, the shards of an index.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;

use super::TensorInfo;
use crate::bytes::foreign;
use crate::bytes::header::MAX_HEADER_BYTES;
use crate::bytes::limited::{is_named, read_limited};
use crate::python::native;
use crate::{gguf, python_json};
use candle_blocks_base::{Error, Result};

/// The file of an unsharded checkpoint.
#[doc(hidden)]
pub const SINGLE: &str = "model.safetensors";
/// The index of a sharded checkpoint.
#[doc(hidden)]
pub const INDEX: &str = "model.safetensors.index.json";
/// The file of an unsharded checkpoint that PyTorch wrote.
#[doc(hidden)]
pub const PICKLE: &str = "pytorch_model.bin";
#[doc(hidden)]
pub const PICKLE_INDEX: &str = "pytorch_model.bin.index.json";
/// PyTorch files beside weights that are not weights: a trainer's state, and an adapter.
const NO_MODELS: [&str; 7] = [
    "training_args",
    "optimizer",
    "scheduler",
    "scaler",
    "rng_state",
    "adapter_model",
    "random_states",
];
/// The size limit, as for a header. The index of the largest public checkpoints has a tenth of it.
const MAX_INDEX_BYTES: u64 = MAX_HEADER_BYTES;

/// The weights' location.
pub(super) enum Located {
    /// In one safetensors file.
    File(PathBuf),
    /// In the shards that this index lists.
    Index(PathBuf),
}

/// Finds the file or index that `path` means.
pub(super) fn locate(path: &Path) -> Result<Located> {
    let found = fs::metadata(path).map_err(|source| Error::io(path, "open", source))?;
    Ok(if found.is_dir() {
        in_directory(path)?
    } else if has_extension(path, "json") {
        Located::Index(path.to_path_buf())
    } else {
        Located::File(path.to_path_buf())
    })
}

/// A single file takes precedence over an index, and safetensors over PyTorch, as in `transformers`
/// (`_get_resolved_checkpoint_files`,
/// <https://github.com/huggingface/transformers/blob/main/src/transformers/modeling_utils.py>). So a directory with both
/// gives the same weights here and there.
fn in_directory(directory: &Path) -> Result<Located> {
    if let Some(path) = named_in_config(directory)? {
        return Ok(match has_extension(&path, "json") {
            true => Located::Index(path),
            false => Located::File(path),
        });
    }
    let named = |name: &str| Some(directory.join(name)).filter(|path| is_named(path));
    for (single, index) in [(SINGLE, INDEX), (PICKLE, PICKLE_INDEX)] {
        if let Some(path) = named(single) {
            return Ok(Located::File(path));
        }
        if let Some(path) = named(index) {
            return Ok(Located::Index(path));
        }
    }
    let paths = list(directory).map_err(|source| Error::io(directory, "list", source))?;
    let with_extension = |extension: &str| -> Vec<&PathBuf> {
        let paths = paths.iter();
        paths
            .filter(|path| has_extension(path, extension))
            .collect()
    };
    let mut weights = with_extension("safetensors");
    // An adapter beside a model is not the model.
    if weights.len() > 1 {
        weights.retain(|path| file_name(path) != "adapter_model.safetensors");
    }
    if weights.is_empty() {
        weights = with_extension("gguf");
        if weights.len() > 1 {
            let models = weights.iter().copied();
            let models: Vec<_> = models.filter(|path| gguf::may_be_model(path)).collect();
            if !models.is_empty() {
                weights = models;
            }
        }
    }
    for extension in ["bin", "pt", "pth", "npz", "npy"] {
        if weights.is_empty() {
            weights = with_extension(extension);
            weights.retain(|path| {
                let is_no_model = NO_MODELS
                    .iter()
                    .any(|start| file_name(path).starts_with(start));
                !is_no_model && !foreign::is_openvino(path)
            });
        }
    }
    // Opening the parts reports the missing ones.
    if let Some(first) = gguf::together(&weights) {
        return Ok(Located::File(first.clone()));
    }
    let reason = match weights[..] {
        [path] => return Ok(Located::File(path.clone())),
        [] => no_weights(directory, &paths),
        ref several => {
            let is = |extension: &str| has_extension(several[0], extension);
            let names = several.iter().map(|path| file_name(path));
            let names: Vec<_> = names.filter(|name| !gguf::is_later_part(name)).collect();
            let names = names.join(", ");
            if several
                .iter()
                .all(|path| native::is_named_so(&file_name(path)))
            {
                native::reason(&names)
            } else if is("gguf") {
                format!("several GGUF files: {names}; open one of them")
            } else if is("safetensors") {
                format!(
                    "several safetensors files and no {INDEX}: {names}; open one of them, or add the index \
                     if they are shards of one checkpoint"
                )
            } else {
                format!(
                    "several files, none of which is called {SINGLE} or {PICKLE}: {names}; open one of them, or add \
                     {PICKLE_INDEX} if they are shards of one checkpoint"
                )
            }
        }
    };
    Err(Error::NoWeights {
        path: directory.to_path_buf(),
        reason,
    })
}

/// Returns why a directory without weights cannot be opened, from what it contains.
fn no_weights(directory: &Path, paths: &[PathBuf]) -> String {
    if let Some(snapshots) = snapshots(directory) {
        return format!(
            "it is a repository's folder in the cache of the Hugging Face Hub; give the directory of a snapshot, such as \
             {snapshots}"
        );
    }
    let other = |paths: &[PathBuf]| {
        let mut paths = paths.iter();
        paths.find(|path| foreign::is_named_so(path)).cloned()
    };
    let in_folders = || paths.iter().find_map(|path| other(&list(path).ok()?));
    let such_as = match (other(paths), below(directory)) {
        (None, Some(folder)) => format!(", such as {}", folder.display()),
        (found, _) => match found.or_else(in_folders) {
            Some(path) => {
                let name = path.strip_prefix(directory).unwrap_or(&path).display();
                let explanation = foreign::explain_file(&path).unwrap_or_default();
                return format!("there is no safetensors file, only {name}: {explanation}");
            }
            None => String::new(),
        },
    };
    format!("there is no safetensors file; give the directory that contains {SINGLE}{such_as}")
}

/// The key of `config.json` that names the weights; transformers then reads no others.
const KEY: &str = "transformers_weights";

/// Returns the weights that a directory's `config.json` names.
///
/// # Errors
/// If the name is not that of a safetensors file or index in the directory.
fn named_in_config(directory: &Path) -> Result<Option<PathBuf>> {
    let Some(name) = weights_of_config(&directory.join("config.json"))? else {
        return Ok(None);
    };
    let path = directory.join(&name);
    match is_named(&path) {
        true => Ok(Some(path)),
        false => Err(no_such_weights(directory, &name)),
    }
}

/// Returns the name that a `config.json` gives the weights. A `config.json` that cannot be read is reported where its other
/// keys are read.
///
/// # Errors
/// If the name is not that of a safetensors file or index below the same directory.
pub(crate) fn weights_of_config(path: &Path) -> Result<Option<String>> {
    let text = match is_named(path) {
        true => read_limited(path, MAX_INDEX_BYTES, "config.json").unwrap_or_default(),
        false => return Ok(None),
    };
    let json: serde_json::Value = python_json::parsed(&text).unwrap_or_default();
    let name = match json.get(KEY) {
        None | Some(serde_json::Value::Null) => return Ok(None),
        Some(name) => name.as_str().unwrap_or_default(),
    };
    let is_one = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
    match is_one && stays_inside(name) {
        true => Ok(Some(name.to_string())),
        false => Err(no_such_weights(&path.with_file_name(""), name)),
    }
}

fn no_such_weights(directory: &Path, name: &str) -> Error {
    Error::NoWeights {
        path: directory.to_path_buf(),
        reason: format!(
            "its config.json names the weights {name:?} as {KEY}, which is no safetensors file and no index of such files \
             in this directory; add that file, or remove the key"
        ),
    }
}

/// Returns the first folder in a directory that contains weights.
fn below(directory: &Path) -> Option<PathBuf> {
    let is_weights = |path: &PathBuf| {
        let names = [SINGLE, INDEX, PICKLE, PICKLE_INDEX];
        names.contains(&file_name(path).as_str()) || has_extension(path, "gguf")
    };
    let folders = list(directory).ok()?;
    let contains = |folder: &PathBuf| list(folder).is_ok_and(|all| all.iter().any(is_weights));
    folders.into_iter().find(contains)
}

/// Returns the snapshots in a repository's folder in the Hub's cache (`models--owner--name`).
fn snapshots(directory: &Path) -> Option<String> {
    let snapshots = list(&directory.join("snapshots")).ok()?;
    let paths = snapshots.iter().map(|path| path.display().to_string());
    let paths: Vec<String> = paths.collect();
    (!paths.is_empty()).then(|| paths.join(" or "))
}

/// Returns a directory's files, sorted, without hidden ones: macOS leaves `._model.safetensors` on foreign disks.
fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// The index of a sharded checkpoint, which maps tensors to shards.
pub(crate) struct Index {
    pub(super) path: PathBuf,
    /// The shard that contains each tensor.
    weight_map: BTreeMap<String, String>,
}

impl Index {
    /// Reads an index and checks that its shards are in its own directory.
    pub(crate) fn read(path: PathBuf) -> Result<Self> {
        #[derive(Deserialize)]
        struct Raw {
            weight_map: BTreeMap<String, String>,
        }

        let cure = "the index of a sharded checkpoint has a weight_map from tensor to file; give \
         such an index, a safetensors file, or the checkpoint's directory";
        let text = read_limited(&path, MAX_INDEX_BYTES, INDEX)?;
        let value: serde_json::Value =
            python_json::parsed(&text).map_err(|error| Error::MalformedJson {
                path: path.clone(),
                reason: format!("{error}; {cure}"),
            })?;
        let raw: Raw = serde_json::from_value(value)
            .map_err(|error| bad_index(&path, format!("{error}; {cure}")))?;
        let weight_map = raw.weight_map;
        if let Some((name, shard)) = weight_map.iter().find(|(_, shard)| !stays_inside(shard)) {
            return Err(bad_index(
                &path,
                format!(
                    "tensor {name:?} should be in {shard:?}, outside the index's own directory and so \
                     outside the checkpoint; put the shards beside the index and name them without a path"
                ),
            ));
        }
        if weight_map.is_empty() {
            return Err(bad_index(
                &path,
                "its weight_map lists no tensor; download it again".into(),
            ));
        }
        Ok(Self { path, weight_map })
    }

    /// Returns the shards' names, each once.
    pub(crate) fn names(&self) -> BTreeSet<&str> {
        self.weight_map.values().map(String::as_str).collect()
    }

    fn place(&self, shard: &str) -> PathBuf {
        self.path.with_file_name(shard)
    }

    /// Returns every shard's path, once. All of them exist.
    pub(super) fn shards(&self) -> Result<Vec<PathBuf>> {
        let shards = self.names();
        let is_missing = |shard: &&&str| {
            let found = fs::metadata(self.place(shard));
            found.is_err_and(|error| {
                use io::ErrorKind::{InvalidFilename, NotFound};
                matches!(error.kind(), NotFound | InvalidFilename)
            })
        };
        let missing: Vec<&str> = shards.iter().filter(is_missing).copied().collect();
        if !missing.is_empty() {
            return Err(bad_index(
                &self.path,
                format!(
                    "{} of its {} shards are missing: {}; download them into the same directory",
                    missing.len(),
                    shards.len(),
                    missing.join(", ")
                ),
            ));
        }
        Ok(shards.into_iter().map(|shard| self.place(shard)).collect())
    }

    /// Only keeps the tensors that the index lists; each must be in its shard.
    pub(super) fn select(&self, found: &mut BTreeMap<String, TensorInfo>) -> Result<()> {
        for (name, shard) in &self.weight_map {
            if found
                .get(name)
                .is_none_or(|info| info.path != self.place(shard))
            {
                return Err(bad_index(
                    &self.path,
                    format!(
                        "tensor {name:?} should be in {shard}, which does not contain it; index \
                         and shards have different versions, download both again"
                    ),
                ));
            }
        }
        found.retain(|name, _| self.weight_map.contains_key(name));
        Ok(())
    }
}

/// Returns whether a shard's name stays inside the directory. Links may lead out: the Hub's cache consists of them.
fn stays_inside(shard: &str) -> bool {
    let mut components = Path::new(shard).components();
    !shard.is_empty()
        && components.all(|part| matches!(part, Component::Normal(_) | Component::CurDir))
}

fn bad_index(path: &Path, reason: String) -> Error {
    Error::BadIndex {
        path: path.to_path_buf(),
        reason,
    }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension()
        .is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

fn file_name(path: &Path) -> String {
    let name = path.file_name().unwrap_or(path.as_os_str());
    name.to_string_lossy().into_owned()
}
