//! Reads a stored tensor's bytes in its own order, in pieces.

use super::{ElementSource, TensorFiles, TensorInfo, read_failed};
use candle_blocks_base::{Error, Result};

/// A tensor that is read in pieces: from its file, or from a copy if its elements are not contiguous.
pub(super) struct TensorPieces<'f> {
    files: &'f TensorFiles,
    name: &'f str,
    info: &'f TensorInfo,
    copy: Option<Vec<u8>>,
}

impl<'f> TensorPieces<'f> {
    pub fn of(files: &'f TensorFiles, name: &'f str, info: &'f TensorInfo) -> Result<Self> {
        let is_view = matches!(info.place(), Some((_, _, Some(_))));
        let copy = match is_view {
            true => Some(copy(files, name, info)?),
            false => None,
        };
        Ok(Self {
            files,
            name,
            info,
            copy,
        })
    }

    /// Replaces `piece` by at most `n` bytes from `start` on.
    pub fn read(&self, start: usize, n: usize, piece: &mut Vec<u8>) -> Result<()> {
        piece.clear();
        let n = n.min(self.info.n_bytes - start);
        if let Some(copy) = &self.copy {
            piece.extend_from_slice(&copy[start..start + n]);
            return Ok(());
        }
        let Some((file, offset, _)) = self.info.place() else {
            return Err(Error::input(
                self.name,
                "it is computed, not stored in a file",
            ));
        };
        let read = self.files.files[file].append(piece, n, offset + start as u64);
        read.map_err(|source| read_failed(self.name, self.info, source))
    }
}

fn copy(files: &TensorFiles, name: &str, info: &TensorInfo) -> Result<Vec<u8>> {
    let n = info.shape.iter().product();
    let all = 0..n;
    let all = std::slice::from_ref(&all);
    fn bytes<T: bytemuck::Pod>(values: Vec<T>) -> Vec<u8> {
        bytemuck::cast_slice(&values).to_vec()
    }
    Ok(match info.dtype.bitsize() {
        8 => files.elements::<u8>(name, info, all)?,
        16 => bytes(files.elements::<u16>(name, info, all)?),
        32 => bytes(files.elements::<u32>(name, info, all)?),
        _ => bytes(files.elements::<u64>(name, info, all)?),
    })
}

impl TensorInfo {
    /// Returns a stored tensor's file, its first byte there, and its strides if its elements are not contiguous.
    pub(super) fn place(&self) -> Option<(usize, u64, Option<&[usize]>)> {
        match &self.storage {
            ElementSource::Stored {
                offset,
                file,
                strides,
            } => Some((*file, *offset, strides.as_deref())),
            ElementSource::Computed(_) => None,
        }
    }
}
