//! Tensors' bytes that stay in memory once they are read.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::TensorFiles;
use super::positioned::PositionedFile;

/// Bytes of tensors, by file and first byte.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<(usize, u64), Arc<Vec<u8>>>>);

impl Memory {
    /// The `n` bytes of a tensor, from the file that is at `place.0` of all files and from byte `place.1` on.
    pub fn bytes(
        &self,
        file: &PositionedFile,
        place: (usize, u64),
        n: usize,
    ) -> io::Result<Arc<Vec<u8>>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = known.get(&place) {
            return Ok(bytes.clone());
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(n)?;
        file.append(&mut bytes, n, place.1)?;
        let bytes = Arc::new(bytes);
        known.insert(place, bytes.clone());
        Ok(bytes)
    }
}

impl TensorFiles {
    /// The same tensors, of which all that is read stays in memory as it is in the files.
    pub(crate) fn kept_in_memory(&self) -> Self {
        Self {
            memory: Some(Arc::default()),
            ..self.clone()
        }
    }
}
