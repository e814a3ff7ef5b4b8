//! Converts a GGUF file's keys to those of transformers' `config.json`.

pub(crate) mod computed;
pub(crate) mod gemma;
pub(crate) mod keys;
pub(crate) mod rank;
pub(crate) mod rope;
pub(crate) mod sizes;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::architecture::{Architecture, Condition, Key, Kind, all};
use crate::error::{Error, Result};

/// A file's contents, or those for a new file.
pub(super) struct Described<'g> {
    /// The file, for messages.
    pub path: &'g Path,
    pub metadata: &'g BTreeMap<String, Value>,
    /// A tensor's shape, by its name in GGUF.
    pub shape: &'g dyn Fn(&str) -> Option<Vec<usize>>,
    /// Returns a small tensor's values, by its name in GGUF.
    pub numbers: &'g dyn Fn(&str) -> Result<Option<Vec<f32>>>,
}

/// One architecture's keys.
pub(super) struct Keys<'g> {
    pub file: &'g Described<'g>,
    pub architecture: &'g str,
    /// Keys that were read, without the architecture's name.
    read: RefCell<BTreeSet<String>>,
}

impl<'g> Keys<'g> {
    pub fn of(file: &'g Described<'g>) -> Self {
        let architecture = file.metadata.get("general.architecture");
        Self {
            file,
            architecture: architecture.and_then(Value::as_str).unwrap_or_default(),
            read: RefCell::default(),
        }
    }

    /// Returns the architecture's first entry that fits the file.
    pub fn entry(&self) -> Option<&'static Architecture> {
        let fits = |(condition, name): &(Condition, &str)| match condition {
            Condition::Key | Condition::NoKey => {
                let found = self.peek(name);
                let is_there =
                    found.is_some_and(|value| value != json!(0) && value != json!(false));
                is_there == (*condition == Condition::Key)
            }
            Condition::Tensor | Condition::NoTensor => {
                self.exists(name) == (*condition == Condition::Tensor)
            }
        };
        all().find(|entry| entry.name == self.architecture && entry.conditions.iter().all(fits))
    }

    pub(super) fn config(&self, entry: &Architecture) -> Result<Value> {
        for (key, largest) in entry.limits.iter() {
            let size = self.size(key)?;
            if size as u64 > *largest {
                let reason = format!(
                    "is {size}: models of more than {largest} differ, and are not supported"
                );
                return Err(self.error(key, reason));
            }
        }
        for (key, least) in entry.least.iter() {
            if self.peek(key).is_some() && (self.size(key)? as u64) < *least {
                let reason = format!("is {}, expected at least {least}", self.size(key)?);
                return Err(self.error(key, reason));
            }
        }
        let mut config = Map::new();
        config.insert("model_type".to_string(), entry.model_type.into());
        let mut insert = |json: &str, value: Value| config.insert(json.to_string(), value);
        for (json, key) in entry.keys.iter() {
            if let Some(value) = self.value(key)? {
                insert(json, value);
            }
        }
        for (json, value) in entry.set.iter() {
            insert(json, value.clone());
        }
        for (json, tensor) in entry.exists.iter() {
            insert(json, self.exists(tensor).into());
        }
        for (json, tensor) in entry.absent.iter() {
            insert(json, (!self.exists(tensor)).into());
        }
        for (json, tensor) in entry.rows.iter() {
            if let Some(n) = self.rows(tensor) {
                insert(json, n.into());
            }
        }
        for (json, call) in entry.calls.iter() {
            let (function, arguments) = call.split_once(' ').unwrap_or((call, ""));
            let value = self.computed(function, arguments)?;
            if !value.is_null() {
                insert(json, value);
            }
        }
        Ok(config.into())
    }

    /// The value for a key in `config.json`, if it has one.
    fn value(&self, key: &Key) -> Result<Option<Value>> {
        let Some(found) = self.optional(key.gguf) else {
            let Some(default) = &key.default else {
                let needed = (key.kind == Kind::Needed).then(|| self.size(key.gguf));
                return Ok(needed.transpose()?.map(Value::from));
            };
            let text = default.as_str().unwrap_or_default();
            return Ok(Some(
                match (text.strip_prefix('@'), text.strip_prefix('!')) {
                    (Some(other), _) => self.size(other)?.into(),
                    (_, Some(function)) => self.computed(function, "")?,
                    _ => default.clone(),
                },
            ));
        };
        Ok(Some(match key.kind {
            Kind::Needed | Kind::Size => match self.size(key.gguf)? {
                0 if key.kind == Kind::Needed && key.gguf.ends_with("_length") => {
                    let reason = "is 0, expected at least 1".to_string();
                    return Err(self.error(key.gguf, reason));
                }
                size => size.into(),
            },
            Kind::Switch => match self.size(key.gguf)? {
                0 => Value::Null,
                size => size.into(),
            },
            Kind::Number => json!(self.number(key.gguf)?),
            Kind::Cap => match self.number(key.gguf)? {
                0.0 => Value::Null,
                number => json!(number),
            },
            Kind::Positive => match self.number(key.gguf)? {
                number if number > 0.0 => json!(number),
                number => {
                    let reason = format!("is {number}, expected a positive number");
                    return Err(self.error(key.gguf, reason));
                }
            },
            Kind::Factor => match self.number(key.gguf)? {
                0.0 => json!(1.0),
                number => json!(number),
            },
            Kind::Flag if !found.is_boolean() => {
                let reason = format!("found {found}, expected true or false");
                return Err(self.error(key.gguf, reason));
            }
            Kind::Flag | Kind::Any => found,
        }))
    }

    /// Returns whether a tensor exists. With `|` between names, any may; a name with `{i}` may be in any block.
    pub(super) fn exists(&self, names: &str) -> bool {
        let n_blocks = self.peek("block_count").and_then(|n| n.as_u64());
        let n_blocks = n_blocks
            .unwrap_or(0)
            .min(crate::checkpoint::config_json::MAX_BLOCKS as u64);
        let is_there = |name: &str| (self.file.shape)(name).is_some();
        names.split('|').any(|name| match name.contains("{i}") {
            true => (0..n_blocks).any(|i| is_there(&name.replace("{i}", &i.to_string()))),
            false => is_there(name),
        })
    }

    /// A tensor's first dimension.
    pub(super) fn rows(&self, name: &str) -> Option<usize> {
        (self.file.shape)(name).and_then(|shape| shape.first().copied())
    }

    /// A head's width.
    pub(super) fn head_dim(&self) -> Result<usize> {
        match self.optional("attention.key_length") {
            Some(_) => self.size("attention.key_length"),
            None => self.divided_width(),
        }
    }

    /// How many dimensions turn in a head.
    pub(super) fn rotary_dim(&self) -> Result<usize> {
        match self.peek("rope.dimension_count") {
            Some(_) => self.size("rope.dimension_count"),
            None => self.head_dim(),
        }
    }

    /// The model's width divided by the heads.
    pub(super) fn divided_width(&self) -> Result<usize> {
        Ok(self.size("embedding_length")? / self.size("attention.head_count")?.max(1))
    }

    /// Returns a key's value. If an array repeats one number for every layer, returns that number.
    pub(super) fn optional(&self, key: &str) -> Option<Value> {
        self.read.borrow_mut().insert(key.to_string());
        self.peek(key)
    }

    /// Returns the same as [`Self::optional`], without a record that the key was read.
    pub(super) fn peek(&self, key: &str) -> Option<Value> {
        let found = self.stored(key)?;
        if let Value::Array(layers) = found
            && let Some((first, rest)) = layers.split_first()
            && first.is_number()
            && rest.iter().all(|layer| layer == first)
        {
            return Some(first.clone());
        }
        (!found.is_null()).then(|| found.clone())
    }

    /// Returns a key's value as it is stored.
    pub(super) fn stored(&self, key: &str) -> Option<&'g Value> {
        let key = format!("{}.{key}", self.architecture);
        self.file.metadata.get(&key)
    }

    /// The architecture's keys that nothing has read.
    pub(super) fn unread(&self) -> Vec<String> {
        let prefix = format!("{}.", self.architecture);
        let all = self
            .file
            .metadata
            .keys()
            .filter_map(|key| key.strip_prefix(&prefix));
        let read = self.read.borrow();
        all.filter(|key| !read.contains(*key))
            .map(str::to_string)
            .collect()
    }

    /// The keys that were read.
    pub(super) fn read(&self) -> BTreeSet<String> {
        self.read.borrow().clone()
    }

    pub(super) fn number(&self, key: &str) -> Result<f64> {
        let found = self.optional(key).unwrap_or(Value::Null);
        let number = found.as_f64();
        number.ok_or_else(|| self.error(key, format!("found {found}, expected a number")))
    }

    pub(super) fn size(&self, key: &str) -> Result<usize> {
        let found = self.optional(key);
        let size = found
            .as_ref()
            .and_then(Value::as_u64)
            .and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| {
            let reason = match found {
                None => "missing, expected an integer".to_string(),
                Some(Value::Array(layers)) => format!(
                    "differs between {} layers, which is not supported for this architecture",
                    layers.len()
                ),
                Some(found) => format!("found {found}, expected an integer"),
            };
            self.error(key, reason)
        })
    }

    pub(super) fn error(&self, key: &str, reason: String) -> Error {
        Error::ConfigKey {
            path: self.file.path.to_path_buf(),
            key: format!("\"{}.{key}\"", self.architecture),
            reason,
        }
    }
}
