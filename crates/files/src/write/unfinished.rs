//! A list of files and directories with temporary names, so that a process can remove them before it ends.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Component, Path, PathBuf, Prefix};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::{NamedTempFile, TempDir};

static ALL: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn all() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes the temporary files and directories of all unfinished writes, such as downloads and saves.
///
/// Call this from a thread that handles signals, right before it ends the process: later writes block for ever. The final
/// paths keep their old contents.
pub fn remove_unfinished() {
    let all = all();
    for path in &*all {
        // It may have got its final name meanwhile.
        let _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path));
    }
    std::mem::forget(all);
}

/// A path that is on the list until this is dropped.
#[derive(Debug)]
struct Listed(PathBuf);

impl Listed {
    /// Creates a file or directory, and adds it to the list before a signal can interfere.
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

/// A file that is removed unless it gets its final name.
pub(crate) struct TemporaryFile {
    file: NamedTempFile,
    _listed: Listed,
}

impl TemporaryFile {
    /// Creates a file with the permissions of an ordinary one, after the umask, instead of a private one.
    pub fn create(directory: &Path) -> io::Result<Self> {
        let mut options = tempfile::Builder::new();
        ordinary(&mut options, 0o666);
        let directory = of_any_length(directory)?;
        let create = || options.tempfile_in(directory);
        let (file, _listed) = Listed::create(create, NamedTempFile::path)?;
        Ok(Self { file, _listed })
    }

    pub fn as_file(&self) -> &File {
        self.file.as_file()
    }

    /// Renames the file to its final name, replacing another.
    pub fn persist(self, path: &Path) -> io::Result<()> {
        let (_, written) = self.file.keep().map_err(|error| error.error)?;
        // Not `NamedTempFile::persist`: on Windows it refuses long paths, and a final file that another program reads.
        fs::rename(&written, path).map_err(|error| {
            let _ = fs::remove_file(&written);
            in_use(error)
        })
    }

    /// Renames the file to its final name, which no other file may have.
    pub fn persist_new(self, path: &Path) -> io::Result<()> {
        let persisted = self.file.persist_noclobber(path).map(drop);
        persisted.map_err(|error| error.error)
    }
}

/// Adds the likely cause to an error in renaming on Windows.
#[doc(hidden)]
pub fn in_use(error: io::Error) -> io::Error {
    /// The system's error for a sharing violation.
    const SHARED: i32 = 32;
    let kind = error.kind();
    let is_denied = kind == io::ErrorKind::PermissionDenied || error.raw_os_error() == Some(SHARED);
    match cfg!(windows) && is_denied {
        true => io::Error::new(
            kind,
            format!(
                "{error}; Windows replaces no file that is open, and renames no directory with an open file, such as the \
                 weights of an open checkpoint: close it, or write to another place"
            ),
        ),
        false => error,
    }
}

/// Sets the mode of files or directories, from which the umask is taken. Windows has none.
#[cfg_attr(not(unix), allow(unused_variables))]
fn ordinary(options: &mut tempfile::Builder, mode: u32) {
    #[cfg(unix)]
    options.permissions(std::os::unix::fs::PermissionsExt::from_mode(mode));
}

/// Returns a directory's path in a form to which a file's name can be added. Windows takes 260 characters from a program
/// that, like `tempfile`, does not use the verbatim form (`\\?\`).
fn of_any_length(directory: &Path) -> io::Result<PathBuf> {
    const LONG: usize = 200;
    let given = || Ok(directory.to_path_buf());
    if !cfg!(windows) {
        return given();
    }
    let full = std::path::absolute(directory)?;
    match full.components().next() {
        Some(Component::Prefix(prefix))
            if matches!(prefix.kind(), Prefix::Disk(_)) && full.as_os_str().len() > LONG =>
        {
            let mut verbatim = OsString::from(r"\\?\");
            verbatim.push(full);
            Ok(verbatim.into())
        }
        _ => given(),
    }
}

/// A directory that is removed with its contents, unless it is renamed and kept.
#[doc(hidden)]
pub struct TemporaryDirectory {
    directory: TempDir,
    _listed: Listed,
}

impl TemporaryDirectory {
    /// Creates a directory in `parent` with ordinary permissions and a name that begins with `prefix`.
    pub fn create(parent: &Path, prefix: &str) -> io::Result<Self> {
        let mut options = tempfile::Builder::new();
        options.prefix(prefix);
        ordinary(&mut options, 0o777);
        let create = || options.tempdir_in(parent);
        let (directory, _listed) = Listed::create(create, TempDir::path)?;
        Ok(Self { directory, _listed })
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Keeps the directory in its place.
    pub fn keep(self) -> PathBuf {
        self.directory.keep()
    }
}

/// Exchanges two directories' names atomically, so that neither is missing at any time. Returns false if the file system
/// cannot do this.
#[cfg(any(target_os = "linux", target_os = "macos"))]
#[doc(hidden)]
pub fn exchange(new: &Path, old: &Path) -> io::Result<bool> {
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
#[doc(hidden)]
pub fn exchange(_: &Path, _: &Path) -> io::Result<bool> {
    Ok(false)
}
