//! A file that is read at given positions, by any number of threads at once.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

#[cfg(target_endian = "big")]
compile_error!("safetensors is little-endian and the reader takes its bytes as they are");

/// An open regular file and its length.
#[derive(Debug)]
pub(super) struct PositionedFile {
    path: PathBuf,
    file: Handle,
    len: u64,
}

impl PositionedFile {
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let failed = |source| Error::io(&path, "open", source);
        // Asked before opening: opening a named pipe waits for somebody to write to it.
        if !fs::metadata(&path).map_err(failed)?.is_file() {
            return Err(Error::irregular(path));
        }
        let file = File::open(&path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        Ok(Self {
            file: Handle::from(file),
            path,
            len,
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The length when it was opened.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Appends `n` values that start at byte `offset`. The caller has reserved the room.
    pub(super) fn append<T: bytemuck::Pod>(
        &self,
        values: &mut Vec<T>,
        n: usize,
        offset: u64,
    ) -> io::Result<()> {
        // The zeros that safe Rust asks for are still in the L2 cache when the read overwrites them.
        const CHUNK_BYTES: usize = 256 * 1024;
        let chunk = CHUNK_BYTES / size_of::<T>();
        for start in (0..n).step_by(chunk) {
            let filled = values.len();
            values.resize(filled + chunk.min(n - start), T::zeroed());
            let bytes = bytemuck::cast_slice_mut(&mut values[filled..]);
            let position = offset + (start * size_of::<T>()) as u64;
            read_exact_at(&self.file, bytes, position)?;
        }
        Ok(())
    }
}

#[cfg(unix)]
type Handle = File;

#[cfg(unix)]
fn read_exact_at(file: &Handle, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

/// One cursor, so one reader at a time.
#[cfg(not(unix))]
type Handle = std::sync::Mutex<File>;

#[cfg(not(unix))]
fn read_exact_at(file: &Handle, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};

    // Every reader seeks first, so a panic elsewhere leaves nothing to distrust.
    let mut file = file.lock().unwrap_or_else(|poison| poison.into_inner());
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(buffer)
}
