//! Files of a tokenizer that stand for others in Git LFS.

use std::path::Path;

use candle_blocks_base::{Error, Result};
use candle_blocks_files::tensors::GIT_LFS;

/// Refuses a file that stands for another in Git LFS.
pub(crate) fn check_pointer(path: &Path, bytes: &[u8]) -> Result<()> {
    match bytes.starts_with(GIT_LFS) {
        true => Err(Error::Tokenizer {
            path: path.to_path_buf(),
            reason: "a Git LFS pointer, not the tokenizer itself; fetch it with `git lfs pull`, or download it again".into(),
        }),
        false => Ok(()),
    }
}
