//! Trains a plain file's layers, and saves their variables under the file's own names.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor, Var};

use crate::checkpoint::files::floating;
use crate::checkpoint::plain::PlainFile;
use crate::checkpoint::save::rounded;
use crate::checkpoint::scheme::Orientation;
use crate::checkpoint::write::{Overwrite, TensorRecord, write_streamed, write_tensor};
use crate::checkpoint::{AsTensor, Parameters};
use crate::device::check_dtype;
use crate::error::{Error, Result, listed};

impl PlainFile {
    /// Loads all layers from now on with variables, for training; [`Self::parameters`] lists them.
    ///
    /// ```no_run
    /// use candle_blocks::{Activation, PlainFile, candle_core::{DType, Device}};
    /// use candle_blocks::train::{AdamW, AdamWConfig, ParameterGroup};
    /// let file = PlainFile::open("mlp.safetensors")?.trainable();
    /// let mlp = file.mlp(Activation::Relu, DType::F32, &Device::Cpu)?;
    /// let mut optimizer = AdamW::new([ParameterGroup::new(file.parameters(), 0.01)], AdamWConfig::default())?;
    /// // .. steps ..
    /// file.save("trained.safetensors", file.parameters())?;
    /// # Ok::<(), candle_blocks::Error>(())
    /// ```
    pub fn trainable(mut self) -> Self {
        self.variables = Some(Mutex::default());
        self
    }

    /// Returns the variables of the layers loaded so far, by their names in the file; empty without [`Self::trainable`]. A
    /// weight is `[d_out, d_in]`, whatever its orientation in the file. A layer that is loaded again has the same variables.
    pub fn parameters(&self) -> Parameters {
        let variables = self.variables.as_ref();
        let variables =
            variables.map(|all| all.lock().unwrap_or_else(PoisonError::into_inner).clone());
        variables.unwrap_or_default()
    }

    /// Writes a copy of the file as safetensors in which the given parameters replace the file's, each converted to its
    /// orientation, shape and dtype in the file. The other tensors are copied. The file may replace the one that was opened.
    ///
    /// # Errors
    /// [`Error::InvalidInput`] if the path does not end in `.safetensors`, a name is unknown or given twice, or a tensor has
    /// another shape than its layer or exceeds the range of the file's dtype; [`Error::AmbiguousOrientation`] for a square
    /// weight; [`Error::Io`] if a file cannot be read or written.
    pub fn save(
        &self,
        path: impl AsRef<Path>,
        parameters: impl IntoIterator<Item = (impl AsRef<str>, impl AsTensor)>,
    ) -> Result<()> {
        let path = path.as_ref();
        if path
            .extension()
            .is_none_or(|extension| extension != "safetensors")
        {
            let reason =
                "a plain file is saved as safetensors; give a name that ends in .safetensors";
            return Err(Error::input(path.display().to_string(), reason));
        }
        let mut saved: HashMap<String, Tensor> = HashMap::new();
        for (name, tensor) in parameters {
            let name = name.as_ref();
            let stored = self.stored(name, &tensor.as_tensor().detach())?;
            if saved.insert(name.to_string(), stored).is_some() {
                return Err(Error::input(name, "given twice; give each name once"));
            }
        }
        let record = |name: &str| {
            let info = self.files.find(name)?;
            Ok(TensorRecord {
                name: name.to_string(),
                dtype: info.dtype,
                shape: info.shape.clone(),
            })
        };
        let records = self.files.names().map(record).collect::<Result<_>>()?;
        let metadata = self.files.metadata().iter();
        let mut metadata: HashMap<_, _> = metadata.map(|(k, v)| (k.clone(), v.clone())).collect();
        metadata
            .entry("format".to_string())
            .or_insert_with(|| "pt".to_string());
        let to = (path, Overwrite::Allowed);
        write_streamed(to, records, Some(metadata), |name, write| {
            match saved.get(name) {
                Some(tensor) => write_tensor(name, tensor, write),
                None => self.files.copy(name, write),
            }
        })
    }

    /// Returns a layer's parameter in the orientation, shape and dtype of the file.
    fn stored(&self, name: &str, tensor: &Tensor) -> Result<Tensor> {
        let contents = &self.contents;
        let norm = contents.norm.as_ref().map(|norm| &norm.parameters);
        let layers = || contents.layers.iter().chain(&contents.gate);
        let is_matrix = layers().any(|layer| layer.weight == name);
        let mut vectors = layers().filter_map(|layer| layer.bias.as_ref());
        let mut norm_parameters = norm
            .iter()
            .flat_map(|norm| norm.bias.iter().chain([&norm.weight]));
        if !is_matrix
            && !vectors.any(|known| known == name)
            && !norm_parameters.any(|known| known == name)
        {
            let similar = listed("nearest:", &self.files.similar(name, 3));
            let reason = format!("the file has no such parameter{similar}");
            return Err(Error::input(name, reason));
        }
        let info = self.files.find(name)?;
        let is_turned = is_matrix && self.is_turned(name, tensor)?;
        let expected: Vec<usize> = match (is_matrix, is_turned) {
            (false, _) => vec![info.shape.iter().product()],
            (true, false) => info.shape.clone(),
            (true, true) => info.shape.iter().rev().copied().collect(),
        };
        if tensor.dims() != expected {
            let found = tensor.dims();
            let reason = format!("it has shape {found:?}, expected {expected:?}");
            return Err(Error::input(name, reason));
        }
        let tensor = match is_turned {
            true => tensor.t()?.contiguous()?,
            false => tensor.reshape(info.shape.as_slice())?,
        };
        rounded(name, &tensor, DType::try_from(info.dtype)?)
    }

    /// Returns whether the file has the weight transposed. Only a square weight has the same shape in both orientations.
    fn is_turned(&self, name: &str, tensor: &Tensor) -> Result<bool> {
        match &self.files.find(name)?.shape[..] {
            [rows, columns] if rows != columns => Ok(tensor.dims() == [*columns, *rows]),
            _ => Ok(self.orientation()? == Orientation::InOut),
        }
    }

    /// Returns a layer's parameter, which `convert` makes from the tensor in the file: a variable when training.
    pub(super) fn parameter(
        &self,
        name: &str,
        dtype: DType,
        device: &Device,
        convert: impl FnOnce(Tensor) -> candle_core::Result<Tensor>,
    ) -> Result<Tensor> {
        check_dtype(dtype, device)?;
        let read = || -> Result<Tensor> {
            let tensor = floating(self.files.read(name)?, self.files.path(), name)?;
            Ok(convert(tensor.to_dtype(dtype)?.to_device(device)?)?)
        };
        let Some(variables) = &self.variables else {
            return read();
        };
        let mut variables = variables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(variable) = variables.find(name) {
            if variable.dtype() != dtype || !variable.device().same_device(device) {
                let reason = "it is loaded already with another type or on another device; open the file again";
                return Err(Error::input(name, reason));
            }
            return Ok(variable.as_tensor().clone());
        }
        let variable = Var::from_tensor(&read()?)?;
        let tensor = variable.as_tensor().clone();
        variables.push(name.to_string(), variable);
        Ok(tensor)
    }
}
