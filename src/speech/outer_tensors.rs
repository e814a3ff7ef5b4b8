//! Tensors outside the blocks, which a family's table does not name.

use candle_core::{DType, Device, Tensor};

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};

/// A checkpoint's tensors outside its blocks, by their names on disk.
#[derive(Debug)]
pub(super) struct OuterTensors<'c> {
    checkpoint: &'c Checkpoint,
    /// The base model's name, with its point; empty if the names have none.
    prefix: String,
}

impl<'c> OuterTensors<'c> {
    /// Finds the prefix before the base model's tensors: the part before `known`, which each such model has.
    pub fn of(checkpoint: &'c Checkpoint, known: &str) -> Self {
        let mut names = checkpoint.files().names();
        let prefix = names.find_map(|name| name.strip_suffix(known));
        Self {
            checkpoint,
            prefix: prefix.unwrap_or_default().to_string(),
        }
    }

    /// Reads the base model's tensor in f32.
    ///
    /// # Errors
    /// If it is missing, or has another shape.
    pub fn read(&self, name: &str, shape: &[usize]) -> Result<Tensor> {
        self.read_one_of(&[name.to_string()], shape)
    }

    /// Reads the base model's first tensor that the files have.
    ///
    /// # Errors
    /// Same as [`Self::read`].
    pub fn read_one_of(&self, names: &[String], shape: &[usize]) -> Result<Tensor> {
        let names = names.iter().map(|name| format!("{}{name}", self.prefix));
        self.read_whole(&names.collect::<Vec<_>>(), shape)
    }

    /// Reads the first tensor with such a whole name.
    ///
    /// # Errors
    /// Same as [`Self::read`].
    pub fn read_whole(&self, names: &[String], shape: &[usize]) -> Result<Tensor> {
        let files = self.checkpoint.files();
        let Some(name) = names.iter().find(|name| files.contains(name)) else {
            return Err(Error::MissingTensor {
                path: files.path().to_path_buf(),
                role: "speech".to_string(),
                tried: names.to_vec(),
                similar: names
                    .first()
                    .map(|name| files.similar(name, 3))
                    .unwrap_or_default(),
            });
        };
        let tensor = files.read(name)?;
        if tensor.dims() != shape {
            return Err(Error::ShapeMismatch {
                path: files.path().to_path_buf(),
                tensor: name.clone(),
                expected: shape.to_vec(),
                found: tensor.dims().to_vec(),
            });
        }
        Ok(tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?)
    }
}
