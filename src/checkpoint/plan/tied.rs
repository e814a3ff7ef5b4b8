//! Tied parameters, such as token embeddings that two stacks share, or parameters that files contain several times.

use std::collections::HashMap;

use serde_json::Value;

use crate::checkpoint::Checkpoint;
use crate::checkpoint::files::TensorFiles;
use crate::checkpoint::plan::source::StoredParameter;
use crate::checkpoint::plan::{Plan, Request};
use crate::checkpoint::scheme::ModelPlace;
use crate::config::{BlockConfig, StackConfig};
use crate::error::{Error, Result};

/// Removes the sources of parameters that an earlier role owns, and records the owning role in `tied`.
pub(crate) fn unite(
    all: Vec<StoredParameter>,
    tied: &mut HashMap<String, String>,
) -> Vec<StoredParameter> {
    let mut first: HashMap<(String, Vec<usize>), usize> = HashMap::new();
    let mut united = Vec::new();
    for source in all {
        let key = (source.name.clone(), source.shape.clone());
        let is_part = source.features.is_some() || source.item.is_some();
        match first.get(&key).filter(|_| !is_part) {
            Some(first) => {
                let kept: &mut StoredParameter = &mut united[*first];
                kept.copies.extend(source.copies);
                kept.copies.sort();
                kept.copies.dedup();
                tied.insert(source.role, kept.role.clone());
            }
            None => {
                first.insert(key, united.len());
                united.push(source);
            }
        }
    }
    united
}

/// Adds to `source` the parameter's other names in the files: `torch.save` stores a tied parameter several times.
///
/// # Errors
/// If the files cannot be read.
pub(crate) fn add_copies<'n>(
    source: &mut StoredParameter,
    others: impl IntoIterator<Item = &'n str>,
    files: &TensorFiles,
) -> Result<Copies> {
    let mut found = Copies::Equal;
    for name in others {
        if name == source.name || source.copies.iter().any(|copy| copy == name) {
            continue;
        }
        match files.hold_equal(&source.name, name)? {
            true => source.copies.push(name.to_string()),
            false => found = Copies::Differing,
        }
    }
    Ok(found)
}

/// Adds the copies that a file has for later uses of a transformer that blocks share.
///
/// # Errors
/// If a copy differs: transformers then runs the layer's own transformer, in spite of the key that ties it.
pub(super) fn add_later_uses(
    sources: &mut [StoredParameter],
    config: &StackConfig,
    files: &TensorFiles,
    candidates: impl Fn(&Request) -> Result<Vec<StoredParameter>>,
) -> Result<()> {
    let block = |of: &BlockConfig| Some(of.own.zamba()?.transformer.as_ref()?.block);
    for (i, first) in config.blocks.iter().map(block).enumerate() {
        let Some(first) = first.filter(|first| *first != i) else {
            continue;
        };
        let first_use = format!("blocks.{first}.transformer.");
        for source in &mut *sources {
            let Some(part) = source.role.strip_prefix(&first_use) else {
                continue;
            };
            let later = candidates(&Request {
                role: &format!("blocks.{i}.transformer.{part}"),
                shape: &source.shape,
                place: ModelPlace::Block(i),
                attention: None,
            })?;
            let copies = later.iter().map(|copy| copy.name.as_str());
            let copies = copies.filter(|name| files.contains(name));
            if let Copies::Differing = add_copies(source, copies, files)? {
                return Err(Error::InvalidConfig(format!(
                    "key {TIES:?}: block {i} has another transformer than block {first} ({} in {}); expected false",
                    source.name,
                    source.path(files).display(),
                )));
            }
        }
    }
    Ok(())
}

/// The result when the tensors in the files for one parameter are compared.
pub(crate) enum Copies {
    Equal,
    Differing,
}

impl Checkpoint {
    /// Returns the `config.json` for a copy of this checkpoint, as bytes. It unties head and token embeddings if the files
    /// contain two different tensors. transformers 5 unties these anyway, but other readers would drop the head if the file
    /// tied it.
    ///
    /// Models with two stacks keep the key, because it also ties the embeddings of both stacks.
    ///
    /// # Errors
    /// If the bytes are not plain JSON.
    pub(crate) fn with_true_ties(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        if !self.plan.unties || self.family.part.is_some() {
            return Ok(bytes);
        }
        let failed = |error: serde_json::Error| {
            let reason = format!(
                "cannot be set to false for a head that differs from the token embeddings \
                 ({error}); do so in the config.json"
            );
            Error::input(TIES, reason)
        };
        let mut value: Value = serde_json::from_slice(&bytes).map_err(failed)?;
        if let Some(object) = value.as_object_mut() {
            object.insert(TIES.to_string(), false.into());
            let sections = object.values_mut().filter_map(Value::as_object_mut);
            for section in sections.filter(|section| section.contains_key(TIES)) {
                section.insert(TIES.to_string(), false.into());
            }
        }
        Ok((serde_json::to_string_pretty(&value).map_err(failed)? + "\n").into_bytes())
    }
}

/// The key that ties token embeddings and head.
const TIES: &str = "tie_word_embeddings";

impl Plan {
    /// Makes roles outside the blocks that share a tensor (tied weights) one parameter, owned by the first, and records each
    /// role's index.
    pub(crate) fn unite_tied(&mut self) {
        let Self { sources, tied, .. } = self;
        let mut outside_blocks = sources.split_off(self.n_in_blocks);
        // A pooler may read the stack's final norm too (BLIP's images).
        outside_blocks.retain(|source| {
            let is_same = |first: &&StoredParameter| {
                first.features.is_none()
                    && first.item.is_none()
                    && (&first.name, &first.shape) == (&source.name, &source.shape)
            };
            match sources.iter().find(is_same) {
                Some(first) => {
                    tied.insert(source.role.clone(), first.role.clone());
                    false
                }
                None => true,
            }
        });
        sources.extend(unite(outside_blocks, tied));
        let places = sources.iter().enumerate();
        self.places = places.map(|(i, s)| (s.role.clone(), i)).collect();
    }

    /// Returns a role's source; for a tied role, the source of the role that owns the parameter.
    pub fn source(&self, role: &str) -> Option<&StoredParameter> {
        let mut role = role;
        while let Some(first) = self.tied.get(role) {
            role = first;
        }
        self.places.get(role).map(|&place| &self.sources[place])
    }

    /// Returns whether other roles share this role's parameter.
    pub fn is_shared(&self, role: &str) -> bool {
        self.tied.values().any(|first| first == role)
    }
}
