//! The cache on disk: `models--owner--name/{refs/<revision>, snapshots/<commit>/<file>, blobs/<etag>}`, where a snapshot's
//! files are links to blobs.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::{
    CHECKPOINTS, CONFIG, EXTRAS, MODULES, WEIGHTS, Wanted, is_commit, model_folder, whole,
};
use crate::tensors as files;
use crate::write::unfinished::TemporaryFile;
use candle_blocks_base::Error;

/// One repository's part of the cache.
pub(super) struct Cache {
    folder: PathBuf,
    /// The directory where `huggingface_hub` has its locks.
    locks: PathBuf,
}

impl Cache {
    pub(super) fn new(root: &Path, repo: &str) -> Self {
        let name = format!("models--{}", repo.replace('/', "--"));
        Self {
            folder: root.join(&name),
            locks: root.join(".locks").join(name),
        }
    }

    /// Returns the directory with a commit's files.
    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder.join("snapshots").join(commit)
    }

    /// Returns the requested content, if the cache has all of it; otherwise the missing part, as a half-sentence.
    pub(super) fn find(&self, revision: &str, wanted: Wanted<'_>) -> Result<PathBuf, String> {
        let snapshot = self.snapshot(&self.commit(revision)?);
        match wanted {
            Some(file) => cached(&snapshot, file),
            None => {
                let is_there = |name: &str| snapshot.join(name).exists();
                let folder = match !is_there(CONFIG) && is_there(MODULES) {
                    true => model_folder(&cached(&snapshot, MODULES)?),
                    false => Ok(String::new()),
                };
                let folder = folder.map_err(|error| error.to_string())?;
                let inside = |name: &str| format!("{folder}{name}");
                let named = match folder.is_empty() {
                    true => files::weights_of_config(&cached(&snapshot, CONFIG)?),
                    false => Ok(None),
                };
                let named = named.map_err(|error| error.to_string())?;
                let usual = { CHECKPOINTS.into_iter() }.find(|name| is_there(&inside(name)));
                let weights = named.unwrap_or_else(|| inside(usual.unwrap_or(WEIGHTS)));
                let path = cached(&snapshot, &weights)?;
                let shards = whole::shards(&path, &weights).map_err(|error| error.to_string())?;
                for shard in shards {
                    cached(&snapshot, &shard)?;
                }
                for extra in EXTRAS.into_iter().chain([CONFIG]) {
                    for name in [extra.to_string(), inside(extra)] {
                        if is_there(&name) {
                            cached(&snapshot, &name)?;
                        }
                    }
                }
                Ok(snapshot)
            }
        }
    }

    /// Records a revision's commit atomically, so that a reader sees the old commit or the new one. Writes nothing if the
    /// commit is recorded already, because the cache may be read-only.
    pub(super) fn write_ref(&self, revision: &str, commit: &str) -> candle_blocks_base::Result<()> {
        if is_commit(revision) || self.commit(revision).is_ok_and(|known| known == commit) {
            return Ok(());
        }
        let path = self.folder.join("refs").join(revision);
        let write = || {
            let parent = path.parent().unwrap_or(&self.folder);
            std::fs::create_dir_all(parent)?;
            let file = TemporaryFile::create(parent)?; // a cache may be shared
            file.as_file().write_all(commit.as_bytes())?;
            file.persist(&path)
        };
        write().map_err(|error| Error::io(&path, "write", error))
    }

    /// Waits until no other thread or process fetches the blob with this name: Python's client locks the same file. Dropping
    /// the file releases the lock.
    pub(super) fn lock(&self, etag: &str) -> std::io::Result<File> {
        std::fs::create_dir_all(&self.locks)?;
        let lock = File::create(self.locks.join(format!("{etag}.lock")))?;
        lock.lock()?;
        Ok(lock)
    }

    /// Returns the path of a blob.
    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.folder.join("blobs").join(etag)
    }

    /// Stores a blob atomically, so that no reader finds a part of it; `fill` writes it.
    pub(super) fn store<E>(
        &self,
        etag: &str,
        io: impl Fn(&std::io::Error) -> E,
        fill: impl FnOnce(&File) -> Result<(), E>,
    ) -> Result<(), E> {
        let blob = self.blob(etag);
        let folder = self.folder.join("blobs");
        std::fs::create_dir_all(&folder).map_err(|error| io(&error))?;
        let file = TemporaryFile::create(&folder).map_err(|error| io(&error))?;
        fill(file.as_file())?;
        file.persist(&blob).map_err(|error| io(&error))
    }

    /// Makes a blob the content of a commit's file: by a symbolic link, as Python's client does. On Windows, which has these
    /// for developers alone, by a second name for the same bytes, or by a copy where the file system has no such names.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> std::io::Result<()> {
        let path = self.snapshot(commit).join(file);
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        #[cfg(unix)]
        {
            let up = "../".repeat(2 + file.matches('/').count());
            std::os::unix::fs::symlink(format!("{up}blobs/{etag}"), &path)
        }
        #[cfg(not(unix))]
        {
            let blob = self.blob(etag);
            std::fs::hard_link(&blob, &path).or_else(|_| std::fs::copy(&blob, &path).map(drop))
        }
    }

    /// Removes a file and the blob with its content.
    pub(super) fn discard_blob(&self, file: &Path, etag: &str) -> candle_blocks_base::Result<()> {
        remove(&self.blob(etag))?;
        remove(file)
    }

    /// Removes a file, and the blob that it links to.
    pub(super) fn discard(&self, file: &Path) -> candle_blocks_base::Result<()> {
        if let Ok(blob) = file.canonicalize()
            && let Ok(blobs) = self.folder.join("blobs").canonicalize()
            && blob.starts_with(blobs)
        {
            remove(&blob)?;
        }
        remove(file)
    }

    fn commit(&self, revision: &str) -> Result<String, String> {
        if is_commit(revision) {
            return Ok(revision.to_string());
        }
        let path = self.folder.join("refs").join(revision);
        match std::fs::read_to_string(&path) {
            Ok(text) if is_commit(text.trim()) => Ok(text.trim().to_string()),
            Ok(_) => Err(format!("{} contains no commit hash", path.display())),
            Err(_) => Err(format!(
                "the cache does not know the revision ({} cannot be read)",
                path.display()
            )),
        }
    }
}

fn cached(snapshot: &Path, file: &str) -> Result<PathBuf, String> {
    let path = snapshot.join(file);
    if !path.exists() {
        return Err(format!("the cache has no {file} in {}", snapshot.display()));
    }
    whole::check(&path, None)
        .map_err(|damage| format!("{} in the cache {damage}", path.display()))?;
    Ok(path)
}

fn remove(path: &Path) -> candle_blocks_base::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path, "remove", error)),
        _ => Ok(()),
    }
}
