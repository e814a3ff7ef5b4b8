//! A file that any number of threads can read at given positions.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use candle_blocks_base::{Error, Result};

#[cfg(target_endian = "big")]
compile_error!("safetensors is little-endian and the reader takes its bytes as they are");

/// An open regular file and its length.
#[derive(Debug)]
pub(crate) struct PositionedFile {
    path: PathBuf,
    file: Handle,
    len: u64,
}

impl PositionedFile {
    pub(crate) fn open(path: PathBuf) -> Result<Self> {
        let failed = |source| Error::io(&path, "open", source);
        // Checked before opening: opening a named pipe waits until somebody writes to it.
        if !fs::metadata(&path).map_err(failed)?.is_file() {
            return Err(Error::irregular(path));
        }
        let file = File::open(&path).map_err(failed)?;
        let len = file.metadata().map_err(failed)?.len();
        check_addressable(len).map_err(failed)?;
        Ok(Self {
            file: Handle::from(file),
            path,
            len,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the length that the file had when it was opened.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Appends `n` values that begin at byte `offset`. The caller has reserved the capacity.
    pub(crate) fn append<T: bytemuck::Pod>(
        &self,
        values: &mut Vec<T>,
        n: usize,
        offset: u64,
    ) -> io::Result<()> {
        // A piece is still in the L2 cache when it is copied. Writing zeros to `values` first takes as long in an optimized build,
        // and a call for each value in a debug build.
        const PIECE_BYTES: usize = 256 * 1024;
        let mut piece: Vec<T> = bytemuck::zeroed_vec(n.min(PIECE_BYTES / size_of::<T>()));
        for start in (0..n).step_by(PIECE_BYTES / size_of::<T>()) {
            let rest = piece.len().min(n - start);
            let piece = &mut piece[..rest];
            let position = offset + (start * size_of::<T>()) as u64;
            read_exact_at(&self.file, bytemuck::cast_slice_mut(piece), position)?;
            values.extend_from_slice(piece);
        }
        Ok(())
    }
}

/// # Errors
/// If this process cannot address that many bytes: a 32-bit one, such as WebAssembly, addresses 4 GiB. Every smaller size and
/// offset fits in a `usize`, so readers may convert them.
fn check_addressable(len: u64) -> io::Result<()> {
    match usize::try_from(len) {
        Ok(_) => Ok(()),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!(
                "it has {len} bytes, and a 32-bit program addresses {}; use a 64-bit program, or a checkpoint in shards or \
                 of a smaller type",
                1u64 << 32
            ),
        )),
    }
}

#[cfg(unix)]
type Handle = File;

#[cfg(unix)]
fn read_exact_at(file: &Handle, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buffer, offset)
}

/// There is one cursor, so only one reader at a time.
#[cfg(not(unix))]
type Handle = std::sync::Mutex<File>;

#[cfg(not(unix))]
fn read_exact_at(file: &Handle, buffer: &mut [u8], offset: u64) -> io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};

    // Every reader seeks first, so a panic in another thread cannot leave a wrong position.
    let mut file = file.lock().unwrap_or_else(|poison| poison.into_inner());
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(buffer)
}
