//! Files and directories that are written under temporary names, on a list, so that a process that is told to end can remove
//! them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{NamedTempFile, PersistError, TempDir};

static ALL: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn all() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary files and directories of all writes that are under way, such as downloads and saves.
///
/// For a thread that handles signals, right before it ends the process: writes that begin later wait for ever. What was at
/// the paths that are being written stays as it was.
pub fn remove_unfinished() {
    let all = all();
    for path in &*all {
        // It may have got its name meanwhile.
        let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
    }
    std::mem::forget(all);
}

/// A path on the list while this lives.
#[derive(Debug)]
struct Listed(PathBuf);

impl Listed {
    /// Creates a file or directory, and lists it before a signal can come between.
    fn create<T>(
        create: impl FnOnce() -> io::Result<T>,
        path: impl FnOnce(&T) -> &Path,
    ) -> io::Result<(T, Self)> {
        let mut all = all();
        let created = create()?;
        let path = path(&created).to_path_buf();
        all.insert(path.clone());
        Ok((created, Self(path)))
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        all().remove(&self.0);
    }
}

/// A file that is removed unless it gets its name.
pub(super) struct TemporaryFile {
    file: NamedTempFile,
    _listed: Listed,
}

impl TemporaryFile {
    /// Creates one that is to become an ordinary file: not private, as by default; the umask applies.
    pub fn create(directory: &Path) -> io::Result<Self> {
        let mut options = tempfile::Builder::new();
        #[cfg(unix)]
        options.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let create = || options.tempfile_in(directory);
        let (file, _listed) = Listed::create(create, NamedTempFile::path)?;
        Ok(Self { file, _listed })
    }

    pub fn as_file(&self) -> &File {
        self.file.as_file()
    }

    /// Gives the file its name, replacing another.
    pub fn persist(self, path: &Path) -> io::Result<()> {
        let persisted = self.file.persist(path).map(drop);
        persisted.map_err(|error: PersistError| error.error)
    }
}

/// A directory that is removed with what is in it, unless it is renamed and kept.
pub(super) struct TemporaryDirectory {
    directory: TempDir,
    _listed: Listed,
}

impl TemporaryDirectory {
    /// Creates one in this directory, with the permissions of an ordinary one and a name that begins so.
    pub fn create(parent: &Path, prefix: &str) -> io::Result<Self> {
        let mut options = tempfile::Builder::new();
        options.prefix(prefix);
        #[cfg(unix)]
        options.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
        let create = || options.tempdir_in(parent);
        let (directory, _listed) = Listed::create(create, TempDir::path)?;
        Ok(Self { directory, _listed })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Leaves it where it is.
    pub fn keep(self) -> PathBuf {
        self.directory.keep()
    }
}
