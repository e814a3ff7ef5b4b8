//! Tensors in GGUF files, whose bytes are read as they are, and the keys beside them.

use std::sync::Arc;

use safetensors::Dtype;

use super::{ElementSource, TensorFiles, TensorInfo};
use crate::bytes::positioned::PositionedFile;
use crate::gguf::{self, Gguf};
use candle_blocks_base::{Error, Result};

impl TensorFiles {
    /// Adds a GGUF file's tensors as bytes.
    pub(super) fn add_gguf(
        &mut self,
        file: PositionedFile,
        (no, count): (usize, usize),
    ) -> Result<()> {
        let read = gguf::read(&file)?;
        read.check_part(file.path(), no, count)?;
        for tensor in &read.tensors {
            if let Some(other) = self.tensors.get(&tensor.name) {
                return Err(Error::NotGguf {
                    path: file.path().to_path_buf(),
                    reason: format!(
                        "tensor {:?} is also in {}; open only files that belong to one checkpoint",
                        tensor.name,
                        other.path.display()
                    ),
                });
            }
            let info = TensorInfo {
                dtype: Dtype::U8,
                shape: vec![tensor.n_bytes],
                path: file.path().to_path_buf(),
                n_bytes: tensor.n_bytes,
                storage: ElementSource::Stored {
                    offset: tensor.offset,
                    file: self.files.len(),
                    strides: None,
                },
            };
            self.tensors.insert(tensor.name.clone(), info);
        }
        match self.gguf.as_mut().and_then(Arc::get_mut) {
            Some(first) => first.append(read),
            None => self.gguf = Some(Arc::new(read)),
        }
        self.files.push(Arc::new(file));
        Ok(())
    }

    /// Returns the GGUF header, if this is a GGUF file.
    #[doc(hidden)]
    pub fn gguf(&self) -> Option<&Gguf> {
        self.gguf.as_deref()
    }

    /// Returns the GGUF header, if its keys are the configuration.
    #[doc(hidden)]
    pub fn own_keys(&self) -> Option<&Gguf> {
        self.gguf().filter(|_| self.describes_itself)
    }

    /// Reads the array of strings under a GGUF file's key; `None` if there is none.
    ///
    /// # Errors
    /// If it contains something else, or a string is not UTF-8.
    pub(crate) fn gguf_texts(&self, key: &str) -> Result<Option<Vec<String>>> {
        match (self.gguf(), self.files.first()) {
            (Some(gguf), Some(first)) => gguf.texts(first, key),
            _ => Ok(None),
        }
    }

    /// Reads the array under a GGUF file's key, for any numeric type; `None` if there is none.
    ///
    /// # Errors
    /// If it contains something else.
    pub(crate) fn gguf_numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        match (self.gguf(), self.files.first()) {
            (Some(gguf), Some(first)) => gguf.numbers(first, key),
            _ => Ok(None),
        }
    }
}
