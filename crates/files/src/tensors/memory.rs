//! Tensors' bytes that stay in memory after they are read.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::TensorFiles;
use crate::bytes::positioned::PositionedFile;

/// The file's index, the offset of the first byte, and the number of bytes: tensors in a pickle may begin at the same byte.
pub(super) type ByteRange = (usize, u64, usize);
pub(super) type SharedBytes = Arc<Vec<u8>>;

/// Tensors' bytes, by location.
#[derive(Debug, Default)]
pub(super) struct ReadCache(Mutex<HashMap<ByteRange, SharedBytes>>);

impl ReadCache {
    /// Returns the bytes of the tensor at a location in `file`.
    pub fn bytes(&self, file: &PositionedFile, place: ByteRange) -> io::Result<SharedBytes> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = known.get(&place) {
            return Ok(bytes.clone());
        }
        let n = place.2;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(n)?;
        file.append(&mut bytes, n, place.1)?;
        let bytes = Arc::new(bytes);
        known.insert(place, bytes.clone());
        Ok(bytes)
    }
}

impl TensorFiles {
    /// Returns the same tensors, whose bytes stay in memory, as they are in the files, after they are read.
    #[doc(hidden)]
    pub fn kept_in_memory(&self) -> Self {
        Self {
            memory: Some(Arc::default()),
            ..self.clone()
        }
    }
}
