//! Tensors that transformers' classes have and a file does not: values for Apertus' activation, which are keys, and zeros.

use std::ops::Range;
use std::sync::Arc;

use serde_json::Value;

use super::ConversionStep;
use crate::checkpoint::files::{Compute, StoredForm, TensorFiles};
use crate::checkpoint::scheme::matches;
use crate::error::{Error, Result};

/// Keys with a number for each layer, and transformers' names for them.
const KEYS: [(&str, &str, &[usize]); 4] = [
    ("xielu.alpha_n", "mlp.act_fn.alpha_n", &[1]),
    ("xielu.alpha_p", "mlp.act_fn.alpha_p", &[1]),
    ("xielu.beta", "mlp.act_fn.beta", &[]),
    ("xielu.eps", "mlp.act_fn.eps", &[]),
];

#[derive(Debug)]
struct Constant {
    number: f32,
    /// A row's width.
    width: usize,
}

/// Adds zeros for parameters that the file does not have and that llama.cpp then leaves out: biases, corrections of experts' scores, and
/// embeddings of token types. Returns whether there are any.
///
/// `missing` are the roles that have no tensor, with the names tried; `stored` returns a role's tensor and shape.
///
/// # Errors
/// If the file's keys cannot be read.
pub(in crate::checkpoint) fn add_absent<'p>(
    config: &Value,
    files: &mut TensorFiles,
    missing: &[(&str, &[String])],
    stored: impl Fn(&str) -> Option<(&'p str, &'p [usize])>,
) -> Result<bool> {
    let Some(gguf) = files.gguf().filter(|_| !missing.is_empty()) else {
        return Ok(false);
    };
    let model_type = config.get("model_type").and_then(Value::as_str);
    let Some(entry) = super::entry(files, gguf, model_type.unwrap_or_default())? else {
        return Ok(false);
    };
    let mut absent = Vec::new();
    for &(role, tried) in missing {
        let named = tried.iter().find_map(|name| {
            let is_correction = role.ends_with(".correction.weight");
            let correction = is_correction.then(|| "blk.exp_probs_b.bias".to_string());
            let original = correction.or_else(|| Some(entry.original(name)?.0))?;
            Some((name, original))
        });
        let Some((name, original)) = named else {
            continue;
        };
        let module = original.rsplit('.').nth(1).unwrap_or_default();
        let is_needed = entry.biased.iter().any(|pattern| matches(pattern, module));
        let weight = match (
            role.strip_suffix(".bias"),
            role.strip_suffix(".correction.weight"),
        ) {
            (Some(module), _) | (_, Some(module)) => stored(&format!("{module}.weight")),
            _ if role == "embeddings.type.weight" => stored("embeddings.word.weight"),
            _ => None,
        };
        let Some((weight, shape)) = weight.filter(|_| !is_needed) else {
            continue;
        };
        let shape = match *shape {
            [_, width] if module == "token_types" => {
                let n_types = config.get("type_vocab_size").and_then(Value::as_u64);
                vec![n_types.unwrap_or(1) as usize, width]
            }
            [n, _] if entry.step(config, &original) == ConversionStep::OneRow => vec![1, n],
            [n, ..] => vec![n],
            [] => continue,
        };
        let Some(part) = files.as_part(weight) else {
            continue;
        };
        absent.push((name.clone(), shape, part));
    }
    let is_any = !absent.is_empty();
    for (name, shape, part) in absent {
        let width = shape.iter().skip(1).product();
        let zeros = Constant { number: 0.0, width };
        files.add_computed(name, shape, &[&part], Arc::new(zeros));
    }
    Ok(is_any)
}

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
            let constant = Constant { number, width: 1 };
            files.add_computed(name, shape.to_vec(), &[&part], Arc::new(constant));
        }
    }
    Ok(())
}

impl Compute for Constant {
    fn rows(&self, _: &TensorFiles, rows: Range<usize>) -> Result<Vec<f32>> {
        Ok(vec![self.number; rows.len() * self.width])
    }

    fn stored_form(&self) -> StoredForm {
        StoredForm::Elements("F32".to_string())
    }

    fn is_of_codes(&self) -> bool {
        false
    }
}
