//! Tensors' bytes that stay in memory once they are read.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::TensorFiles;
use super::positioned::PositionedFile;

/// Which of the files, the first byte in it, and how many: tensors of a pickle may share a beginning.
pub(super) type Place = (usize, u64, usize);
pub(super) type Bytes = Arc<Vec<u8>>;

/// Bytes of tensors, by their place.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<Place, Bytes>>);

impl Memory {
    /// The bytes of the tensor at a place, which is in `file`.
    pub fn bytes(&self, file: &PositionedFile, place: Place) -> io::Result<Bytes> {
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
    /// The same tensors, of which all that is read stays in memory as it is in the files.
    pub(crate) fn kept_in_memory(&self) -> Self {
        Self {
            memory: Some(Arc::default()),
            ..self.clone()
        }
    }
}
