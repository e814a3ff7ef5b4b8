//! Quantized weights: each matrix is dequantized while it is read.
//!
//! `quantization_config` names the method, and the tensors under a module's name contain the rest. If both disagree, or a
//! variant is unknown, opening the checkpoint fails. The dequantized matrix gets the name and the shape of the original
//! weight, so families and layers do not know about quantization.

mod awq;
mod bitnet;
mod bitsandbytes;
mod coded;
mod companions;
mod compressed_tensors;
mod gptq;
mod grouped;
mod keys;
mod method;
mod mlx;
mod rows;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;

use self::method::{BESIDE, KEYS, Method};
#[doc(hidden)]
pub use self::method::{config_of_dense_weights, config_of_packed_weights};

use crate::config_json::ConfigJson;
use crate::tensors::{Compute, StoredTensor, TensorFiles};
use candle_blocks_base::{Error, Result};

/// The parts of a quantized file that its weights do not need.
#[derive(Default)]
#[doc(hidden)]
pub struct LeftOut {
    /// The names of tensors that change no weight.
    pub tensors: Vec<String>,
    /// The settings and tensors by which activations or caches would be rounded.
    pub unrounded: Vec<String>,
}

/// Replaces quantized tensors by dequantized weights, and takes tensors that change no weight from the files.
///
/// `stacks` has the modules of experts that were stacked, with the module of their stack.
///
/// # Errors
/// If the method is not supported, if its tensors do not fit each other or the configuration, or if there are none.
#[doc(hidden)]
pub fn dequantize(
    json: &ConfigJson,
    files: &mut TensorFiles,
    stacks: &HashMap<String, String>,
) -> Result<LeftOut> {
    let Some((config, method)) = Method::of(json, files.directory(), stacks)? else {
        return Ok(LeftOut::default());
    };
    let tensors = method.left_out(files);
    let left_out = LeftOut {
        unrounded: companions::unrounded(&config, &tensors),
        tensors,
    };
    let names: Vec<String> = files.names().map(String::from).collect();
    let mut n_found = 0;
    for name in &names {
        let ends = method.markers().iter();
        let Some(prefix) = ends.filter_map(|end| name.strip_suffix(end)).next() else {
            continue;
        };
        // A module may have several markers, and an earlier one may have removed this tensor.
        if !files.contains(name) {
            continue;
        }
        let mut module = QuantizedModule { files, prefix };
        let Some(matrix) = method.matrix(&mut module)? else {
            continue;
        };
        let weight = format!("{prefix}{}", method.weight());
        let parts: Vec<&StoredTensor> = matrix.parts.iter().collect();
        files.add_computed(weight, matrix.shape, &parts, matrix.compute);
        n_found += 1;
    }
    if n_found == 0 {
        let expected = method.markers().join(" or ");
        let is_marked = |name: &&String| method.markers().iter().any(|end| name.ends_with(end));
        if let Some(name) = names.iter().find(is_marked) {
            let reason = format!(
                "beside {name} the weights are not quantized, and {} rounds them while the model \
                 runs; that is not supported, and without the key the weights are read \
                 unchanged",
                method.name()
            );
            return Err(config.error(&KEYS[..1], reason));
        }
        let reason = format!(
            "the weights should be quantized by {}, but no tensor's name ends with {expected}; \
             remove the key if they are not",
            method.name()
        );
        return Err(config.error(&KEYS[..1], reason));
    }
    Ok(left_out)
}

/// Returns the error for weights in a directory whose quantization method is not supported, if that is so.
#[doc(hidden)]
pub fn refused(directory: &Path) -> Option<Error> {
    let json = ConfigJson::open_named(&directory.join("config.json"));
    Method::of(&json.ok()??, directory, &HashMap::new()).err()
}

/// Returns whether `config.json`, or a file beside it, declares quantization.
///
/// # Errors
/// If its key does not contain an object.
#[doc(hidden)]
pub fn is_named(json: &ConfigJson, directory: &Path) -> Result<bool> {
    let is_beside = BESIDE
        .iter()
        .any(|(name, _)| directory.join(name).is_file());
    Ok(is_beside || method::quantization(json)?.is_some())
}

/// A quantized matrix, found in the files.
struct DequantizedMatrix {
    /// The tensors from which it is computed.
    parts: Vec<StoredTensor>,
    shape: Vec<usize>,
    compute: Arc<dyn Compute>,
}

impl DequantizedMatrix {
    fn new(
        parts: Vec<StoredTensor>,
        shape: Vec<usize>,
        stored: impl rows::QuantizedMatrix + 'static,
    ) -> Self {
        Self {
            parts,
            shape,
            compute: Arc::new(stored),
        }
    }
}

/// The tensors whose names begin with a module's name.
struct QuantizedModule<'f> {
    files: &'f mut TensorFiles,
    prefix: &'f str,
}

impl QuantizedModule<'_> {
    fn has(&self, name: &str) -> bool {
        self.dtype(name).is_some()
    }

    fn dtype(&self, name: &str) -> Option<Dtype> {
        let info = self.files.info(&format!("{}{name}", self.prefix))?;
        Some(info.dtype)
    }

    fn take(&mut self, name: &str) -> Option<StoredTensor> {
        self.files.take(&format!("{}{name}", self.prefix))
    }

    /// # Errors
    /// If the module has no such tensor.
    fn needs(&mut self, name: &str) -> Result<StoredTensor> {
        self.files.find(&format!("{}{name}", self.prefix))?;
        let part = self.take(name);
        part.ok_or_else(|| Error::input(name, "it was there before, but is missing now"))
    }
}
