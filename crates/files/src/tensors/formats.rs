//! Reads a file's header in the format that its first bytes show.

#[cfg(feature = "hub")]
use std::path::Path;

use crate::bytes::header::{self, Header};
use crate::bytes::positioned::PositionedFile;
use crate::python::{numpy, torch, zip};
use candle_blocks_base::{Error, Result};

/// Checks that a safetensors file is complete: its tensors must fill everything after its header.
#[cfg(feature = "hub")]
pub(crate) fn check(path: &Path) -> Result<()> {
    read_header(&PositionedFile::open(path.into())?).map(drop)
}

/// Checks that a zip archive, such as a file from PyTorch 1.6 or newer, is complete.
#[cfg(feature = "hub")]
pub(crate) fn check_archive(path: &Path) -> Result<()> {
    let file = PositionedFile::open(path.into())?;
    match starts_with(&file, zip::MAGIC)? {
        true => zip::read(&file).map(drop),
        false => Ok(()),
    }
}

fn starts_with(file: &PositionedFile, magic: &[u8]) -> Result<bool> {
    if file.len() < magic.len() as u64 {
        return Ok(false);
    }
    let mut start: Vec<u8> = Vec::with_capacity(magic.len());
    let read = file.append(&mut start, magic.len(), 0);
    read.map_err(|cause| Error::io(file.path(), "read", cause))?;
    Ok(start == magic)
}

/// Reads the header of a safetensors, PyTorch or NumPy file.
pub(super) fn read_header(file: &PositionedFile) -> Result<Header> {
    if starts_with(file, numpy::MAGIC)? {
        return numpy::read(file);
    }
    if !starts_with(file, zip::MAGIC)? {
        return header::read(file);
    }
    let entries = zip::read(file)?;
    match (torch::is_one(&entries), numpy::is_one(&entries)) {
        (true, _) => torch::read(file, &entries),
        (false, true) => numpy::read_archive(file, &entries),
        (false, false) => Err(Error::UnreadableWeights {
            path: file.path().to_path_buf(),
            format: "a zip archive",
            reason: "it contains neither the `data.pkl` of `torch.save` nor the arrays of \
             `numpy.savez`; give a weights file"
                .into(),
        }),
    }
}
