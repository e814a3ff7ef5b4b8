//! Weights that were quantised before they were saved: each matrix is read as the numbers that its codes stand for.
//!
//! `quantization_config` names the method, the tensors beside a module's name say the rest: where both differ, or a variant
//! is unknown, opening the checkpoint fails. What is computed from the codes takes the name and the shape of the weight that
//! was quantised, so that families and layers know nothing of it.

mod awq;
mod bits;
mod bitsandbytes;
mod coded;
mod compressed_tensors;
mod gptq;
mod grouped;
mod keys;
mod method;
mod mlx;
pub(super) mod numbers;
mod pack;
mod rows;

use std::path::Path;
use std::sync::Arc;

use safetensors::Dtype;

use self::method::{BESIDE, KEYS, Method};
pub(super) use self::method::{config_of_dense_weights, config_of_packed_weights};
pub(super) use self::pack::Packing;

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::{Compute, Part, TensorFiles};
use crate::error::Result;

/// Puts the weights that quantised tensors stand for in the place of these.
///
/// # Errors
/// If the method is not read, its tensors do not fit each other or the configuration, or there are none.
pub(super) fn dequantize(json: &ConfigJson, files: &mut TensorFiles) -> Result<()> {
    let Some((config, method)) = Method::of(json, files.directory())? else {
        return Ok(());
    };
    let names: Vec<String> = files.names().map(String::from).collect();
    let mut n_found = 0;
    for name in &names {
        let ends = method.markers().iter();
        let Some(prefix) = ends.filter_map(|end| name.strip_suffix(end)).next() else {
            continue;
        };
        // One of several markers of a module may be gone with an earlier one.
        if !files.contains(name) {
            continue;
        }
        let mut module = Module { files, prefix };
        let Some(matrix) = method.matrix(&mut module)? else {
            continue;
        };
        for unused in method.unused() {
            module.take(unused);
        }
        let weight = format!("{prefix}{}", method.weight());
        let parts: Vec<&Part> = matrix.parts.iter().collect();
        files.add_computed(weight, matrix.shape, &parts, matrix.compute);
        n_found += 1;
    }
    if n_found == 0 {
        let expected = method.markers().join(" or ");
        let is_marked = |name: &&String| method.markers().iter().any(|end| name.ends_with(end));
        if let Some(name) = names.iter().find(is_marked) {
            let reason = format!(
                "beside {name} the weights are numbers, which {} rounds as the model runs; that is not done here, and without the key \
                 the weights are read as they are",
                method.name()
            );
            return Err(config.error(&KEYS[..1], reason));
        }
        let reason = format!(
            "the weights should be quantised by {}, but no tensor's name ends in {expected}; remove the key if they are not",
            method.name()
        );
        return Err(config.error(&KEYS[..1], reason));
    }
    Ok(())
}

/// Whether `config.json`, or a file beside it, says that something is quantized.
///
/// # Errors
/// If its key holds no object.
pub(super) fn is_named(json: &ConfigJson, directory: &Path) -> Result<bool> {
    let is_beside = BESIDE
        .iter()
        .any(|(name, _)| directory.join(name).is_file());
    Ok(is_beside || method::quantization(json)?.is_some())
}

/// A quantised matrix, found in the files.
struct Matrix {
    /// What it is computed from.
    parts: Vec<Part>,
    shape: Vec<usize>,
    compute: Arc<dyn Compute>,
}

impl Matrix {
    fn new(parts: Vec<Part>, shape: Vec<usize>, stored: impl rows::Stored + 'static) -> Self {
        Self {
            parts,
            shape,
            compute: Arc::new(stored),
        }
    }
}

/// The tensors whose names begin as a module's.
struct Module<'f> {
    files: &'f mut TensorFiles,
    prefix: &'f str,
}

impl Module<'_> {
    fn has(&self, name: &str) -> bool {
        self.dtype(name).is_some()
    }

    fn dtype(&self, name: &str) -> Option<Dtype> {
        let info = self.files.info(&format!("{}{name}", self.prefix))?;
        Some(info.dtype)
    }

    fn take(&mut self, name: &str) -> Option<Part> {
        self.files.take(&format!("{}{name}", self.prefix))
    }

    /// # Errors
    /// If the module has no such tensor.
    fn needs(&mut self, name: &str) -> Result<Part> {
        self.files.find(&format!("{}{name}", self.prefix))?;
        let part = self.take(name);
        part.ok_or_else(|| crate::Error::input(name, "it was there, and is not"))
    }
}
