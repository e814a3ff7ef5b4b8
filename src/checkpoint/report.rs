//! The report on every tensor in a checkpoint.

use std::{collections::HashMap, fmt, path::PathBuf};

use serde::Serialize;

use crate::checkpoint::loader::as_stored::{NotAsStored, not_as_stored};
use crate::checkpoint::{
    files::TensorFiles,
    plan::{Plan, source::StoredParameter},
};
use crate::error::escape::Escaped;

/// The conversion from a tensor on disk to parameters.
/// It is in [`UsedTensor::conversions`](crate::checkpoint::UsedTensor::conversions).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Conversion {
    /// It is stored as `[d_in, d_out]` and is transposed.
    Transposed,
    /// It contains several parameters and is split.
    Split,
    /// It is quantized in the file and was dequantized.
    Dequantized,
}

/// A tensor on disk that provides one or more parameters. It is in [`LoadReport::used`](crate::LoadReport::used).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UsedTensor {
    /// Its name on disk.
    pub name: String,
    /// Roles of the parameters that it provides.
    pub roles: Vec<String>,
    /// Its conversions.
    pub conversions: Vec<Conversion>,
}

/// A PEFT adapter that is merged into the weights. It is in [`LoadReport::adapters`](crate::LoadReport::adapters).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct AppliedAdapter {
    /// The directory with its files.
    pub directory: PathBuf,
    /// The adapter was found beside the weights, not requested.
    pub is_beside: bool,
    /// The tensors on disk that it changes, replaces or adds.
    pub tensors: Vec<String>,
    /// Unknown keys in its configuration. They were ignored, as PEFT ignores unknown keys.
    pub unread: Vec<String>,
}

/// The use of every tensor in a checkpoint, according to its family's rules. `Display` prints a summary.
/// [`Checkpoint::report`](crate::Checkpoint::report) returns it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[must_use]
#[non_exhaustive]
pub struct LoadReport {
    /// Tensors that provide parameters for the blocks.
    pub used: Vec<UsedTensor>,
    /// Tensors that are not parameters (position ids, causal masks).
    pub ignored: Vec<String>,
    /// Parameters outside the blocks (embeddings, heads), also heads that are not loaded.
    pub outside: Vec<String>,
    /// Tensors outside the blocks that the whole model uses, for its embeddings, pooler and head.
    pub ends: Vec<UsedTensor>,
    /// Tensors that no rule of the family covers. [`Strictness`](crate::Strictness) refuses them.
    pub unused: Vec<String>,
    /// Tensors outside the blocks that no part of the whole model reads, such as a further embedding. transformers reports them as
    /// unexpected.
    pub unread: Vec<String>,
    /// Roles of parameters for which there is no tensor.
    pub missing: Vec<String>,
    /// Paths of keys in `config.json` that nothing reads and that are not known to change nothing. transformers keeps such a
    /// key, and code on the Hub may read it. `architectures` is one of them if it names a class with an unknown head.
    pub unread_keys: Vec<String>,
    /// Keys in `config.json` for which eager attention in transformers gives other results than its default attention, each with the
    /// `attn_implementation` that is followed here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disputed_keys: Vec<String>,
    /// Settings in `quantization_config` and tensors by which the file's method rounds activations or caches to fewer bits. They are
    /// not rounded here.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unrounded: Vec<String>,
    /// The applied adapters, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub adapters: Vec<AppliedAdapter>,
    /// Matrices that [`Precision::AsStored`](crate::Precision::AsStored) does not pack as the files store them, by type. Empty if
    /// no matrix is quantized: that precision is then refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_as_stored: Vec<NotAsStored>,
}

impl LoadReport {
    pub(crate) fn new(plan: &Plan, files: &TensorFiles, adapters: &[AppliedAdapter]) -> Self {
        Self {
            used: used(plan.in_blocks()),
            ends: used(plan.outside_blocks()),
            ignored: plan.ignored.clone(),
            outside: plan.outside.clone(),
            unused: plan.unused.clone(),
            unread: plan.unread.clone(),
            missing: plan.missing.iter().map(|m| m.role.clone()).collect(),
            unread_keys: plan.unread_keys.clone(),
            disputed_keys: plan.disputed_keys.clone(),
            unrounded: plan.unrounded.clone(),
            adapters: adapters.to_vec(),
            not_as_stored: not_as_stored(plan, files),
        }
    }

    /// Returns the used tensors that are transposed or split.
    pub fn converted(&self) -> impl Iterator<Item = &UsedTensor> {
        self.used.iter().filter(|t| !t.conversions.is_empty())
    }
}

/// Returns the tensors that these sources name, each once.
fn used(sources: &[StoredParameter]) -> Vec<UsedTensor> {
    let mut used: Vec<UsedTensor> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new(); // a tensor's index in `used`
    for source in sources {
        if let Some(&place) = places.get(source.name.as_str()) {
            used[place].roles.push(source.role.clone());
            continue;
        }
        places.insert(&source.name, used.len());
        let is_split = source.features.is_some() || source.item.is_some();
        let conversions = [
            source.is_transposed().then_some(Conversion::Transposed),
            is_split.then_some(Conversion::Split),
            source.is_quantized.then_some(Conversion::Dequantized),
        ];
        used.push(UsedTensor {
            name: source.name.clone(),
            roles: vec![source.role.clone()],
            conversions: conversions.into_iter().flatten().collect(),
        });
    }
    used
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "tensors: {} used ({} converted), {} outside the blocks, {} ignored, {} unused, {} missing",
            self.used.len(),
            self.converted().count(),
            self.outside.len(),
            self.ignored.len(),
            self.unused.len() + self.unread.len(),
            self.missing.len()
        )?;
        for adapter in &self.adapters {
            let directory = adapter.directory.display().to_string();
            let n = adapter.tensors.len();
            writeln!(f, "  adapter {}: changes {n} tensors", Escaped(&directory))?;
        }
        for of_type in &self.not_as_stored {
            writeln!(f, "  {}", Escaped(of_type))?;
        }
        for (what, names) in [
            ("unused", &self.unused),
            ("unused", &self.unread),
            ("missing", &self.missing),
            ("key of config.json that is not read", &self.unread_keys),
            (
                "key that transformers' attentions follow differently",
                &self.disputed_keys,
            ),
            ("activations are not rounded by", &self.unrounded),
        ] {
            for name in names {
                writeln!(f, "  {what}: {}", Escaped(name))?;
            }
        }
        Ok(())
    }
}
