//! A module in `modules.json` or `router_config.json`.

use std::path::{Component, Path, PathBuf};

use super::refused;
use crate::error::{Error, Result};

/// The package of the supported modules' classes, whatever is between it and the class name.
pub(super) const PACKAGE: &str = "sentence_transformers.";

/// A module: its class, its files, and its place in the file that names it.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub class: String,
    pub folder: PathBuf,
    pub file: PathBuf,
    key: String,
}

impl Entry {
    /// Makes the entry of a module in `path`, a folder in `directory`; `key` of `file` names its class.
    ///
    /// # Errors
    /// If the folder is outside.
    pub fn new(directory: &Path, path: &str, class: &str, file: &Path, key: &str) -> Result<Self> {
        let is_inside = |part: Component| matches!(part, Component::Normal(_) | Component::CurDir);
        if !Path::new(path).components().all(is_inside) {
            let reason = format!(
                "is at {path:?}, outside the model's directory; copy it there and name it without \"..\""
            );
            return Err(refused(file, key, reason));
        }
        Ok(Self {
            class: class.to_string(),
            folder: directory.join(path),
            file: file.to_path_buf(),
            key: key.to_string(),
        })
    }

    /// Returns its class name.
    ///
    /// # Errors
    /// If it is not one of sentence-transformers' classes.
    pub fn name(&self) -> Result<&str> {
        let own = || {
            self.refused(format!(
                "{:?} is the model's own code, not a module of sentence-transformers, and is not run",
                self.class
            ))
        };
        let class = self.class.strip_prefix(PACKAGE).ok_or_else(own)?;
        Ok(class.rsplit('.').next().unwrap_or_default())
    }

    /// Returns an error about it.
    pub fn refused(&self, reason: String) -> Error {
        refused(&self.file, &self.key, reason)
    }
}
