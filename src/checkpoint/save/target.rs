//! The directory that a checkpoint is saved to; it appears complete or not at all.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::companions::{is_companion, keep};
use super::{CONFIG, ExistingFiles};
use crate::checkpoint::files::INDEX;
use crate::checkpoint::write::directory as parent_of;
use crate::error::{Error, Result};
use candle_blocks_files::write::reserved;
use candle_blocks_files::write::unfinished::{TemporaryDirectory, exchange, in_use};

/// The final directory, and the temporary one beside it in which the files are written.
pub(in crate::checkpoint) struct SaveTarget {
    directory: PathBuf,
    staging: TemporaryDirectory,
    existing: ExistingFiles,
    /// The final directory existed and was not empty.
    replaces: bool,
}

impl SaveTarget {
    pub fn new(directory: &Path, existing: ExistingFiles) -> Result<Self> {
        let failed = |source| Error::io(directory, "create", source);
        reserved::check(directory).map_err(failed)?;
        let (directory, replaces) = match fs::canonicalize(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                fs::create_dir_all(parent_of(directory)).map_err(failed)?;
                (directory.to_path_buf(), false)
            }
            Err(error) => return Err(failed(error)),
            // A link stays, and its target is replaced.
            Ok(found) => {
                let _lock = lock(&found);
                let is_full = is_full(&found, existing)?;
                (found, is_full)
            }
        };
        let parent = parent_of(&directory);
        let staging = TemporaryDirectory::create(parent, TEMPORARY);
        let staging = staging.map_err(|source| Error::io(parent, "write", source))?;
        Ok(Self {
            directory,
            staging,
            existing,
            replaces,
        })
    }

    /// Returns the temporary directory.
    pub fn staging(&self) -> &Path {
        self.staging.path()
    }

    /// Renames the complete temporary directory to the final one. Other processes may do the same at the same time; the last
    /// one's directory stays.
    pub fn commit(self) -> Result<()> {
        self.commit_by(exchange)
    }

    fn commit_by(self, exchange: fn(&Path, &Path) -> io::Result<bool>) -> Result<()> {
        let Self {
            directory,
            staging,
            existing,
            mut replaces,
        } = self;
        let failed = |source| Error::io(&directory, "write", in_use(source));
        let is_full_error = |error: &_| is_full_error(error, &directory);
        let _lock = lock(&directory);
        for _ in 0..MOST_RACES {
            if replaces {
                match keep(&directory, staging.path()) {
                    Err(Error::Io { cause, .. }) if cause.kind() == io::ErrorKind::NotFound => {
                        replaces = is_full(&directory, existing)?;
                        continue;
                    }
                    kept => kept?,
                }
            }
            if !replaces {
                if cfg!(windows) {
                    // Elsewhere, a rename replaces an empty directory.
                    let _ = fs::remove_dir(&directory);
                }
                match fs::rename(staging.path(), &directory) {
                    Ok(()) => {
                        let _ = staging.keep(); // it has its new name: there is nothing to remove
                        return Ok(());
                    }
                    Err(error) if is_full_error(&error) => {
                        replaces = is_full(&directory, existing)?;
                        continue;
                    }
                    Err(error) => return Err(failed(error)),
                }
            }
            match exchange(staging.path(), &directory) {
                Ok(true) => return Ok(()), // the temporary directory, which is now removed, contains the old files
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    replaces = false;
                    continue;
                }
                Err(error) => return Err(failed(error)),
            }
            // A signal must not remove this directory, because it contains the old files.
            let mut options = tempfile::Builder::new();
            let options = options.prefix(TEMPORARY);
            let aside = options.tempdir_in(parent_of(&directory)).map_err(failed)?;
            let old = aside.path().join("old");
            match fs::rename(&directory, &old) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    replaces = false;
                    continue;
                }
                Err(error) => return Err(failed(error)),
            }
            match fs::rename(staging.path(), &directory) {
                Ok(()) => {
                    let _ = staging.keep();
                    return Ok(());
                }
                // Another process was faster, and the files set aside are older than its own.
                Err(error) if is_full_error(&error) => continue,
                Err(error) => {
                    if let Err(again) = fs::rename(&old, &directory)
                        && !is_full_error(&again)
                    {
                        let kept = aside.keep(); // the copy set aside is better than none
                        return Err(Error::io(kept, "move back", error));
                    }
                    return Err(failed(error));
                }
            }
        }
        let reason = "other processes keep replacing it; save to another directory";
        Err(Error::input(directory.display().to_string(), reason))
    }
}

/// The prefix of temporary directories' names.
const TEMPORARY: &str = ".saving-";

/// The number of times that another process may interfere before this is an error.
const MOST_RACES: usize = 1000;

/// Returns whether a rename failed because a directory with that name is not empty. Windows refuses the access then.
fn is_full_error(error: &io::Error, directory: &Path) -> bool {
    match error.kind() {
        io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists => true,
        io::ErrorKind::PermissionDenied => cfg!(windows) && directory.is_dir(),
        _ => false,
    }
}

/// Waits until no other thread or process that saves reads or changes a directory's entries. Returns the lock, which lasts
/// until it is dropped; `None` if the system or file system cannot lock a directory, so that concurrent saves may interfere.
fn lock(directory: &Path) -> Option<fs::File> {
    let parent = fs::File::open(parent_of(directory)).ok()?;
    parent.lock().ok()?;
    Some(parent)
}

/// Returns whether a directory exists and is not empty; an error if it may not be replaced.
fn is_full(directory: &Path, existing: ExistingFiles) -> Result<bool> {
    let entries: io::Result<Vec<_>> = fs::read_dir(directory).and_then(|entries| {
        entries
            .map(|entry| entry.and_then(|entry| Ok((entry.file_type()?, entry))))
            .collect()
    });
    let entries = match entries {
        // Another process has set it aside at this moment.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        entries => entries.map_err(|source| Error::io(directory, "list", source))?,
    };
    for (file_type, entry) in &entries {
        let (name, path) = (
            entry.file_name().to_string_lossy().into_owned(),
            entry.path(),
        );
        let is_ours = file_type.is_file()
            && (name == CONFIG
                || name == INDEX
                || name.starts_with("model") && name.ends_with(".safetensors"));
        let refused = |reason: String| Err(Error::input(directory.display().to_string(), reason));
        match existing {
            ExistingFiles::Refuse => {
                return refused(format!(
                    "it contains {name}; give a new directory, or replace this one \
                     (`SaveOptions::existing` with `ExistingFiles::Replace`)"
                ));
            }
            ExistingFiles::Replace if !is_ours && !is_companion(&name, &path) => {
                return refused(format!(
                    "it contains {name}, which saving neither writes nor keeps; move it away, or \
                     give another directory"
                ));
            }
            ExistingFiles::Replace => {}
        }
    }
    Ok(!entries.is_empty())
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Several threads each replace a directory with two files, again and again.
    fn race(exchange: fn(&Path, &Path) -> io::Result<bool>) {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("target");
        let names = [CONFIG, "model.safetensors"];
        let companion = directory.join("tokenizer.json");
        fs::create_dir(&directory).unwrap();
        fs::write(&companion, "kept").unwrap();
        thread::scope(|scope| {
            for writer in 0..4 {
                let directory = &directory;
                scope.spawn(move || {
                    for _ in 0..100 {
                        let target = SaveTarget::new(directory, ExistingFiles::Replace).unwrap();
                        for name in names {
                            fs::write(target.staging().join(name), [writer]).unwrap();
                        }
                        target.commit_by(exchange).unwrap();
                    }
                });
            }
        });
        let found = names.map(|name| fs::read(directory.join(name)).unwrap());
        assert_eq!(found[0], found[1]);
        assert_eq!(fs::read_to_string(companion).unwrap(), "kept");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    #[cfg_attr(
        windows,
        ignore = "Windows cannot lock a directory, so that writers interfere"
    )]
    fn writers_that_exchange_leave_the_whole_directory_of_the_last() {
        race(exchange);
    }

    #[test]
    #[cfg_attr(
        windows,
        ignore = "Windows cannot lock a directory, so that writers interfere"
    )]
    fn writers_that_cannot_exchange_leave_the_whole_directory_of_the_last() {
        race(|_, _| Ok(false));
    }

    #[test]
    fn a_directory_that_came_meanwhile_is_replaced_only_where_that_is_allowed() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("target");
        for (existing, name, may) in [
            (ExistingFiles::Refuse, CONFIG, false),
            (ExistingFiles::Replace, "notes.txt", false),
            (ExistingFiles::Replace, CONFIG, true),
        ] {
            let target = SaveTarget::new(&directory, existing).unwrap();
            fs::write(target.staging().join(INDEX), "new").unwrap();
            fs::create_dir(&directory).unwrap();
            fs::write(directory.join(name), "old").unwrap();
            let result = target.commit();
            assert_eq!(result.is_ok(), may, "{existing:?} {name}: {result:?}");
            assert_eq!(directory.join(name).exists(), !may);
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
            fs::remove_dir_all(&directory).unwrap();
        }
    }
}
