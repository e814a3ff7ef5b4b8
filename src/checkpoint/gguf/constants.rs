//! Values that a file has under keys and transformers in tensors: for Apertus' activation.

use std::ops::Range;
use std::sync::Arc;

use candle_blocks_kernels::products::{QuantizedFormat, QuantizedWeightRows};
use serde_json::Value;

use crate::checkpoint::files::{Coding, Compute, StoredForm, TensorFiles};
use crate::error::{Error, Result};

/// Keys with a number for each layer, and transformers' names for them.
const KEYS: [(&str, &str, &[usize]); 4] = [
    ("xielu.alpha_n", "mlp.act_fn.alpha_n", &[1]),
    ("xielu.alpha_p", "mlp.act_fn.alpha_p", &[1]),
    ("xielu.beta", "mlp.act_fn.beta", &[]),
    ("xielu.eps", "mlp.act_fn.eps", &[]),
];

#[derive(Debug)]
struct Constant(f32);

/// Adds a tensor for each number.
///
/// # Errors
/// If a key does not hold a number for all `n_layers`.
pub(super) fn add(files: &mut TensorFiles, n_layers: usize) -> Result<()> {
    for (key, name, shape) in KEYS {
        let found = files
            .gguf()
            .and_then(|gguf| gguf.metadata.get(key))
            .cloned();
        let numbers = match found {
            Some(Value::Array(numbers)) if numbers.len() == n_layers => numbers,
            found => {
                return Err(Error::ConfigKey {
                    path: files.path().to_path_buf(),
                    key: format!("{key:?}"),
                    reason: format!(
                        "found {}, expected a number for each of {n_layers} layers",
                        found.unwrap_or(Value::Null)
                    ),
                });
            }
        };
        for (i, number) in numbers.iter().enumerate() {
            let number = number.as_f64().unwrap_or(f64::NAN) as f32;
            let Some(part) = files.as_part("token_embd.weight") else {
                return Ok(());
            };
            let name = format!("model.layers.{i}.{name}");
            files.add_computed(name, shape.to_vec(), &[&part], Arc::new(Constant(number)));
        }
    }
    Ok(())
}

impl Compute for Constant {
    fn rows(&self, _: &TensorFiles, rows: Range<usize>) -> Result<Vec<f32>> {
        Ok(vec![self.0; rows.len()])
    }

    fn coding(&self, _: &TensorFiles) -> Result<Coding> {
        Ok(Coding::Numbers)
    }

    fn stored_form(&self) -> StoredForm {
        StoredForm::Elements("F32".to_string())
    }

    fn is_of_codes(&self) -> bool {
        false
    }

    fn coded_rows(
        &self,
        _: &TensorFiles,
        _: Range<usize>,
        _: QuantizedFormat,
    ) -> Result<QuantizedWeightRows> {
        Ok(QuantizedWeightRows::default()) // it has none
    }
}
