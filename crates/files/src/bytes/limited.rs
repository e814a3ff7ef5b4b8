//! Small files of a checkpoint, which are read whole.

use std::path::Path;
use std::{fs, io};

use candle_blocks_base::{Error, Result};

/// Returns whether anything has this name, even a broken link. An optional file only counts as missing if nothing has its
/// name; otherwise the reader reports the problem.
#[doc(hidden)]
pub fn is_named(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Reads a checkpoint's JSON file, called `name` in messages, of at most `max_bytes`.
#[doc(hidden)]
pub fn read_limited(path: &Path, max_bytes: u64, name: &str) -> Result<Vec<u8>> {
    let failed = |source| Error::io(path, "read", source);
    let malformed = |what: String| Error::UnexpectedJson {
        path: path.to_path_buf(),
        reason: format!("it {what}; give the checkpoint's {name}"),
    };
    // Checked before opening: opening a named pipe waits until somebody writes to it, and a device has no end.
    let found = fs::metadata(path).map_err(|source| match path.is_symlink() {
        true => failed(io::Error::other(format!(
            "it is a link that leads to no file ({source}); fetch that file, or remove the link"
        ))),
        false => failed(source),
    })?;
    if !found.is_file() && !found.is_dir() {
        return Err(malformed("is not a regular file".into()));
    }
    if found.len() > max_bytes {
        return Err(malformed(format!("has more than {max_bytes} bytes")));
    }
    fs::read(path).map_err(failed)
}
