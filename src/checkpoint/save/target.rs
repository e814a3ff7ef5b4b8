//! The directory that a checkpoint is saved to, which appears complete or not at all.

use std::path::{Path, PathBuf};
use std::{fs, io};

use tempfile::TempDir;

use super::{CONFIG, Existing};
use crate::checkpoint::files::INDEX;
use crate::checkpoint::write::directory as parent_of;
use crate::error::{Error, Result};

/// The final directory, and the temporary one beside it in which the files are written.
pub(in crate::checkpoint) struct Target {
    directory: PathBuf,
    staging: TempDir,
    /// Whether the final directory exists and is not empty.
    replaces: bool,
}

impl Target {
    pub fn new(directory: &Path, existing: Existing) -> Result<Self> {
        let failed = |source| Error::io(directory, "create", source);
        let (directory, replaces) = match fs::metadata(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(parent_of(directory)).map_err(failed)?;
                (directory.to_path_buf(), false)
            }
            Err(error) => return Err(failed(error)),
            // A link stays, and what it leads to is replaced.
            Ok(_) => {
                let is_full = is_full(directory, existing)?;
                (fs::canonicalize(directory).map_err(failed)?, is_full)
            }
        };
        let staging = beside(&directory)?;
        Ok(Self {
            directory,
            staging,
            replaces,
        })
    }

    /// The temporary directory.
    pub fn staging(&self) -> &Path {
        self.staging.path()
    }

    /// Renames the complete temporary directory to the final one.
    pub fn commit(self) -> Result<()> {
        let Self {
            directory,
            staging,
            replaces,
        } = self;
        let failed = |source| Error::io(&directory, "write", source);
        if replaces && exchange(staging.path(), &directory).map_err(failed)? {
            return Ok(()); // what is removed with the temporary directory is the old one
        }
        if !replaces {
            fs::rename(staging.path(), &directory).map_err(failed)?;
        } else {
            let aside = beside(&directory)?;
            let old = aside.path().join("old");
            fs::rename(&directory, &old).map_err(failed)?;
            if let Err(error) = fs::rename(staging.path(), &directory) {
                if fs::rename(&old, &directory).is_err() {
                    let kept = aside.keep(); // better there than nowhere
                    return Err(Error::io(kept, "move back", error));
                }
                return Err(failed(error));
            }
        }
        let _ = staging.keep(); // it has its new name: there is nothing to remove
        Ok(())
    }
}

/// Has two directories take each other's names at once, so that at no time one of them is missing; false where the file
/// system cannot.
#[cfg(any(target_os = "linux", target_os = "macos"))]
fn exchange(new: &Path, old: &Path) -> io::Result<bool> {
    use rustix::{
        fs::{CWD, RenameFlags, renameat_with},
        io::Errno,
    };
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(any(target_os = "linux", target_os = "macos")))]
fn exchange(_: &Path, _: &Path) -> io::Result<bool> {
    Ok(false)
}

/// A fresh directory on the same file system, with the permissions of an ordinary one.
fn beside(directory: &Path) -> Result<TempDir> {
    let parent = parent_of(directory);
    let mut options = tempfile::Builder::new();
    options.prefix(".saving-");
    #[cfg(unix)]
    options.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    let created = options.tempdir_in(parent);
    created.map_err(|source| Error::io(parent, "write", source))
}

/// Whether a directory holds anything; an error if that may not be replaced.
fn is_full(directory: &Path, existing: Existing) -> Result<bool> {
    let failed = |source| Error::io(directory, "list", source);
    let mut is_full = false;
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_ours = entry.file_type().map_err(failed)?.is_file()
            && (name == CONFIG
                || name == INDEX
                || name.starts_with("model") && name.ends_with(".safetensors"));
        let refused = |reason: String| Err(Error::input(directory.display().to_string(), reason));
        match existing {
            Existing::Refuse => {
                return refused(format!(
                    "it holds {name}; give a new directory, or replace this one with `Existing::Replace`"
                ));
            }
            Existing::Replace if !is_ours => {
                return refused(format!(
                    "it holds {name}, which is no part of a saved checkpoint; give another directory"
                ));
            }
            Existing::Replace => is_full = true,
        }
    }
    Ok(is_full)
}
