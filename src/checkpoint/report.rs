//! The report on every tensor of a checkpoint.

use std::{collections::HashMap, fmt, path::PathBuf};

use serde::Serialize;

use crate::checkpoint::as_stored::{NotAsStored, not_as_stored};
use crate::checkpoint::{files::TensorFiles, plan::Plan, source::Source};
use crate::error::escape::Escaped;

/// How a tensor on disk is converted into parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Conversion {
    /// It is stored as `[d_in, d_out]` and is transposed.
    Transposed,
    /// It contains several parameters and is split.
    Split,
    /// It was quantised, and is read as the numbers that its codes stand for.
    Dequantized,
}

/// A tensor on disk that provides one or more parameters.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UsedTensor {
    /// Its name on disk.
    pub name: String,
    /// The roles of the parameters that it provides.
    pub roles: Vec<String>,
    /// How it is converted.
    pub conversions: Vec<Conversion>,
}

/// An adapter of PEFT that is part of the weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AppliedAdapter {
    /// Where its files are.
    pub directory: PathBuf,
    /// Whether it was not asked for, but lies beside the weights.
    pub is_beside: bool,
    /// The tensors on disk that it changes, replaces or adds.
    pub tensors: Vec<String>,
    /// The keys of its configuration that are not known, and were not followed, as PEFT does not follow keys that it does not
    /// know.
    pub unread: Vec<String>,
}

/// How every tensor of a checkpoint is used according to the rules of its family. `Display` prints a summary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[must_use]
pub struct LoadReport {
    /// Tensors that provide parameters of the blocks.
    pub used: Vec<UsedTensor>,
    /// Tensors that are not parameters (position ids, causal masks).
    pub ignored: Vec<String>,
    /// Parameters outside the blocks (embeddings, heads).
    pub outside: Vec<String>,
    /// Those of them that the whole model uses, for its embeddings, pooler and head.
    pub ends: Vec<UsedTensor>,
    /// Tensors that no rule of the family covers.
    pub unused: Vec<String>,
    /// Roles of parameters for which there is no tensor.
    pub missing: Vec<String>,
    /// Keys of `config.json`, by their paths, that nothing here reads and that are not known to change nothing. transformers
    /// keeps such a key, and code on the Hub may read it. `architectures` is among them where it names a class with a head that
    /// is not known here.
    pub unread_keys: Vec<String>,
    /// The adapters that are applied, in this order.
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
            used: used(plan.of_blocks()),
            ends: used(plan.of_ends()),
            ignored: plan.ignored.clone(),
            outside: plan.outside.clone(),
            unused: plan.unused.clone(),
            missing: plan.missing.iter().map(|m| m.role.clone()).collect(),
            unread_keys: plan.unread_keys.clone(),
            adapters: adapters.to_vec(),
            not_as_stored: not_as_stored(plan, files),
        }
    }

    /// The used tensors that are transposed or split.
    pub fn converted(&self) -> impl Iterator<Item = &UsedTensor> {
        self.used.iter().filter(|t| !t.conversions.is_empty())
    }
}

/// The tensors that these sources name, each once.
fn used(sources: &[Source]) -> Vec<UsedTensor> {
    let mut used: Vec<UsedTensor> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new(); // where in `used` a tensor is
    for source in sources {
        if let Some(&place) = places.get(source.name.as_str()) {
            used[place].roles.push(source.role.clone());
            continue;
        }
        places.insert(&source.name, used.len());
        let is_split = source.features.is_some() || source.item.is_some();
        let conversions = [
            source.lies_transposed().then_some(Conversion::Transposed),
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
            self.unused.len(),
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
            ("missing", &self.missing),
            ("key of config.json that is not read", &self.unread_keys),
        ] {
            for name in names {
                writeln!(f, "  {what}: {}", Escaped(name))?;
            }
        }
        Ok(())
    }
}
