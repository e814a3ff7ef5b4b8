//! Reading a `config.json`: keys with aliases and defaults, and errors that name the key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::checkpoint::files::{is_named, read_limited};
use crate::checkpoint::read_keys::{ReadKeys, joined};
use crate::checkpoint::{gguf, python_json};
use crate::config::{Activation, MAX_SIZE};
use crate::error::{Error, Result};

/// A `config.json` has some kilobytes.
const MAX_BYTES: u64 = 10_000_000;
/// No name of a family, an activation or the like is longer.
const MAX_TEXT_BYTES: usize = 1000;
/// How much of a wrong value a message shows.
const SHOWN_CHARACTERS: usize = 200;
/// Ten times the deepest transformer published (DeepNet, 1,000 layers, <https://arxiv.org/abs/2203.00555>).
pub(crate) const MAX_BLOCKS: usize = 10_000;

/// The `config.json` of a checkpoint, or another JSON file beside it.
///
/// It records which keys were read. All copies and sections of a file share the record.
#[derive(Clone, Debug)]
pub struct ConfigJson {
    path: PathBuf,
    value: Value,
    /// The path of the object that this is in the file; `None` for the whole file.
    section: Option<String>,
    /// The file's name of a key, where it is not the one asked for.
    renamed: BTreeMap<String, String>,
    /// The keys of the file that were read so far.
    read: Arc<ReadKeys>,
}

impl ConfigJson {
    /// Reads and parses a file, or the keys of a GGUF file.
    ///
    /// # Errors
    /// If it cannot be read, is not JSON, or is not an object.
    pub fn open(path: &Path) -> Result<Self> {
        if gguf::is_gguf(path) {
            return Ok(Self::given(path, gguf::config(path)?));
        }
        let own = path.file_name().and_then(|name| name.to_str());
        let name = own.filter(|name| name.ends_with(".json"));
        let text = read_limited(path, MAX_BYTES, name.unwrap_or("config.json"))?;
        let malformed = |reason: String| Error::MalformedJson {
            path: path.to_path_buf(),
            reason,
        };
        let value: Value = python_json::parsed(&text).map_err(malformed)?;
        if !value.is_object() {
            return Err(Error::UnexpectedJson {
                path: path.to_path_buf(),
                reason: "expected an object of keys".to_string(),
            });
        }
        Ok(Self::given(path, value))
    }

    /// Reads and parses a file that need not be there.
    ///
    /// # Errors
    /// As for [`Self::open`]: whatever else has its name, such as a link that leads nowhere, is no missing file.
    pub(crate) fn open_named(path: &Path) -> Result<Option<Self>> {
        is_named(path).then(|| Self::open(path)).transpose()
    }

    /// What a file at `path` will stand for.
    pub(crate) fn given(path: &Path, value: Value) -> Self {
        Self {
            path: path.to_path_buf(),
            read: Arc::new(ReadKeys::new(value.clone())),
            value,
            section: None,
            renamed: BTreeMap::new(),
        }
    }

    /// Returns the paths of the keys of the file, or of this section of it, that nothing has read so far, except those in
    /// `harmless`: paths from here, each with all that is inside. A key whose value is null counts as absent.
    ///
    /// A reader of a file calls this last. An unread key that would change results is refused by its name.
    pub(crate) fn unread(&self, harmless: &[&str]) -> Vec<String> {
        let section = self.section.as_deref();
        let is_harmless = |path: &String| {
            harmless.iter().any(|known| {
                let rest = path.strip_prefix(&joined(section, known));
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            })
        };
        let mut unread = self.read.unread(section);
        unread.retain(|path| !is_harmless(path));
        unread
    }

    /// Records that `key`, a path from here, was read.
    fn record(&self, key: &str) {
        let key = self.renamed.get(key).map_or(key, String::as_str);
        self.read.record(joined(self.section.as_deref(), key));
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A copy in which `key`, if absent, has the given value: the default of the family's configuration class.
    pub fn with_default(&self, key: &str, value: impl Into<Value>) -> Self {
        let mut changed = self.clone();
        if let Some(object) = changed.value.as_object_mut() {
            object.entry(key).or_insert(value.into());
        }
        changed
    }

    /// A copy without `key`: what it says is read in another place.
    pub fn without(&self, key: &str) -> Self {
        let mut changed = self.clone();
        if let Some(object) = changed.value.as_object_mut() {
            object.remove(key);
        }
        changed
    }

    /// The first of `keys` that is present and not null.
    fn find<'k>(&self, keys: &[&'k str]) -> Option<(&'k str, &Value)> {
        keys.iter().for_each(|key| self.record(key));
        self.value_of(keys)
    }

    fn value_of<'k>(&self, keys: &[&'k str]) -> Option<(&'k str, &Value)> {
        keys.iter()
            .filter_map(|&key| Some((key, self.value.get(key)?)))
            .find(|(_, value)| !value.is_null())
    }

    /// Makes an [`Error::ConfigKey`] for one of `keys`.
    pub fn error(&self, keys: &[&str], reason: impl Into<String>) -> Error {
        let in_file = |key: &&str| match self.renamed.get(*key) {
            Some(name) => format!("{name:?}"),
            None => format!("{key:?}"),
        };
        let quoted: Vec<String> = keys.iter().map(in_file).collect();
        Error::ConfigKey {
            path: self.path.clone(),
            key: quoted.join(" or "),
            reason: reason.into(),
        }
    }

    /// The value under one of `keys`, as `parse` reads it; `None` if no key is there.
    fn optional<T>(
        &self,
        keys: &[&str],
        kind: &str,
        parse: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.find(keys) {
            None => Ok(None),
            Some((key, value)) => parse(value).map(Some).ok_or_else(|| {
                let found = match python_json::not_finite(value) {
                    Some(number) => number.to_string(),
                    None => abbreviated(value.to_string()),
                };
                self.error(&[key], format!("found {found}, expected {kind}"))
            }),
        }
    }

    /// A size that must be present.
    pub fn size(&self, keys: &[&str]) -> Result<usize> {
        self.optional_size(keys)?
            .ok_or_else(|| self.error(keys, "missing, expected a whole number"))
    }

    /// A size that may be absent or null.
    pub fn optional_size(&self, keys: &[&str]) -> Result<Option<usize>> {
        self.optional(keys, &format!("a whole number up to {MAX_SIZE}"), |value| {
            let size = usize::try_from(value.as_u64()?).ok()?;
            Some(size).filter(|&size| size <= MAX_SIZE)
        })
    }

    /// A size, or `default` if absent or null.
    pub fn size_or(&self, keys: &[&str], default: usize) -> Result<usize> {
        Ok(self.optional_size(keys)?.unwrap_or(default))
    }

    /// A size above 0, or `default` if absent or null.
    pub(crate) fn width_or(&self, keys: &[&str], default: usize) -> Result<usize> {
        match self.size_or(keys, default)? {
            0 => Err(self.error(keys, "found 0, expected a positive number")),
            width => Ok(width),
        }
    }

    /// A size that `null` disables; `default` if absent.
    pub fn switchable_size(&self, key: &str, default: usize) -> Result<Option<usize>> {
        match self.value.get(key) {
            None => Ok(Some(default)),
            Some(_) => self.optional_size(&[key]),
        }
    }

    /// A number that `null` disables; `default` if absent.
    pub fn switchable_number(&self, key: &str, default: f64) -> Result<Option<f64>> {
        match self.value.get(key) {
            None => Ok(Some(default)),
            Some(_) => self.optional_number(&[key]),
        }
    }

    /// The number of blocks, which must be present.
    pub fn n_blocks(&self, keys: &[&str]) -> Result<usize> {
        let n_blocks = self.size(keys)?;
        if !(1..=MAX_BLOCKS).contains(&n_blocks) {
            let reason = format!("found {n_blocks}, expected 1 to {MAX_BLOCKS} blocks");
            return Err(self.error(keys, reason));
        }
        Ok(n_blocks)
    }

    /// A number, or `default` if absent.
    pub fn number(&self, keys: &[&str], default: f64) -> Result<f64> {
        let number = self.optional(keys, "a finite number", Value::as_f64)?;
        Ok(number.unwrap_or(default))
    }

    /// A boolean, or `default` if absent.
    pub fn flag(&self, keys: &[&str], default: bool) -> Result<bool> {
        let flag = self.optional(keys, "true or false", Value::as_bool)?;
        Ok(flag.unwrap_or(default))
    }

    /// A string that may be absent.
    pub fn text(&self, keys: &[&str]) -> Result<Option<String>> {
        let kind = format!("a text of up to {MAX_TEXT_BYTES} bytes");
        self.optional(keys, &kind, |value| {
            let text = value.as_str()?;
            (text.len() <= MAX_TEXT_BYTES).then(|| text.to_string())
        })
    }

    /// An activation by its name, or `default` if absent.
    pub fn activation(&self, keys: &[&str], default: Activation) -> Result<Activation> {
        match self.text(keys)? {
            None => Ok(default),
            Some(name) => self.activation_named(&name, keys),
        }
    }

    /// The activation `name`, which is in the value under one of `keys`.
    pub(crate) fn activation_named(&self, name: &str, keys: &[&str]) -> Result<Activation> {
        let unknown = |e: Error| self.error(keys, e.to_string());
        name.parse().map_err(unknown)
    }

    /// A number that may be absent or null.
    pub fn optional_number(&self, keys: &[&str]) -> Result<Option<f64>> {
        self.optional(keys, "a finite number", Value::as_f64)
    }

    /// A list of numbers that may be absent.
    pub fn numbers(&self, keys: &[&str]) -> Result<Option<Vec<f64>>> {
        self.optional(keys, "a list of finite numbers", |value| {
            value.as_array()?.iter().map(Value::as_f64).collect()
        })
    }

    /// One token id or a list of them; `None` if absent.
    pub fn token_ids(&self, key: &str) -> Result<Option<Vec<u32>>> {
        let token = |value: &Value| u32::try_from(value.as_u64()?).ok();
        self.optional(
            &[key],
            "a token id or a list of them",
            |value| match value.as_array() {
                Some(tokens) => tokens.iter().map(token).collect(),
                None => token(value).map(|token| vec![token]),
            },
        )
    }

    /// A special token of a `tokenizer_config.json`, which is text or an object with text; `None` if absent.
    pub fn special_token(&self, key: &str) -> Result<Option<String>> {
        self.optional(&[key], "a token", |value| {
            let text = value.get("content").unwrap_or(value);
            text.as_str().map(str::to_string)
        })
    }

    /// Templates by name; one alone is named `default`. `None` if absent.
    pub fn templates(&self, key: &str) -> Result<Option<Vec<(String, String)>>> {
        let named = |one: &Value| {
            let text = |key: &str| one.get(key)?.as_str().map(str::to_string);
            Some((text("name")?, text("template")?))
        };
        self.optional(
            &[key],
            "a template, or a list of objects with name and template",
            |value| match value.as_array() {
                Some(all) => all.iter().map(named).collect(),
                None => Some(vec![("default".to_string(), value.as_str()?.to_string())]),
            },
        )
    }

    /// A list of strings that may be absent.
    pub fn texts(&self, keys: &[&str]) -> Result<Option<Vec<String>>> {
        self.optional(keys, "a list of texts", |value| {
            let text = |value: &Value| value.as_str().map(str::to_string);
            value.as_array()?.iter().map(text).collect()
        })
    }

    /// Strings given as lists with a number of repetitions, `[[["global", "local"], 12]]`; `None` if absent.
    pub fn repeated_texts(&self, key: &str) -> Result<Option<Vec<String>>> {
        let parse = |value: &Value| -> Option<Vec<String>> {
            let mut all = Vec::new();
            for group in value.as_array()? {
                let [texts, times] = group.as_array()?.as_slice() else {
                    return None;
                };
                let texts: Option<Vec<&str>> =
                    texts.as_array()?.iter().map(Value::as_str).collect();
                let texts = texts?;
                for _ in 0..times.as_u64()?.min(MAX_BLOCKS as u64) {
                    all.extend(texts.iter().map(|text| text.to_string()));
                }
            }
            Some(all)
        };
        self.optional(&[key], "lists of texts with their numbers", parse)
    }

    /// Which layers have a sliding window: according to `layer_types`, or else to `default`.
    pub fn sliding_layers(
        &self,
        n_layers: usize,
        default: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>> {
        let key = "layer_types";
        match self.texts(&[key])? {
            None => Ok((0..n_layers).map(default).collect()),
            Some(types) if types.len() == n_layers => {
                let is_sliding = |kind: &String| match kind.as_str() {
                    "sliding_attention" => Ok(true),
                    "full_attention" | "attention" => Ok(false), // the second is an older name
                    other => {
                        let known = "only \"full_attention\" and \"sliding_attention\"";
                        Err(self.error(&[key], format!("{other:?} is not supported, {known}")))
                    }
                };
                types.iter().map(is_sliding).collect()
            }
            Some(types) => {
                let reason = format!("lists {} layers, expected {n_layers}", types.len());
                Err(self.error(&[key], reason))
            }
        }
    }

    /// The names of all keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        let object = self.value.as_object();
        object.into_iter().flatten().map(|(key, _)| key.as_str())
    }

    /// Returns all keys with their values.
    #[cfg(feature = "text")]
    pub(crate) fn entries(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.value.as_object().into_iter().flatten()
    }

    /// The value under `key`, deserialised as a `T`; `None` if absent or null.
    pub(crate) fn parsed<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let parse = |(key, value)| {
            let parsed = serde_json::from_value(Value::clone(value)); // by reference would compile every type once more
            parsed.map_err(|e| self.error(&[key], e.to_string()))
        };
        self.find(&[key]).map(parse).transpose()
    }

    /// A nested object, such as `text_config`; `None` if absent or null.
    pub fn section(&self, keys: &[&str]) -> Result<Option<Self>> {
        let Some((key, value)) = self.value_of(keys) else {
            return Ok(None);
        };
        match value.is_object() {
            true => Ok(Some(self.inside(key, value.clone()))),
            false => self.optional(&[key], "an object", |_| None),
        }
    }

    /// The object under `key`, or what a reader takes for it. Its keys are recorded as those of the object.
    pub(crate) fn inside(&self, key: &str, value: Value) -> Self {
        let key = self.renamed.get(key).map_or(key, String::as_str);
        Self {
            section: Some(joined(self.section.as_deref(), key)),
            ..self.with_value(value, BTreeMap::new())
        }
    }

    /// The value at a path of keys, with dots between them, which may be null.
    pub(crate) fn at(&self, path: &str) -> Option<&Value> {
        self.record(path);
        self.value_at(path)
    }

    /// As [`Self::at`], without a record: the value is not read yet.
    pub(crate) fn value_at(&self, path: &str) -> Option<&Value> {
        path.split('.')
            .try_fold(&self.value, |value, key| value.get(key))
    }

    /// All of it.
    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    /// The same file with other contents, in which keys may have other names than there.
    pub(crate) fn with_value(&self, value: Value, renamed: BTreeMap<String, String>) -> Self {
        Self {
            path: self.path.clone(),
            value,
            section: self.section.clone(),
            renamed,
            read: Arc::clone(&self.read),
        }
    }

    /// Refuses a feature that the crate does not support: `key` must be absent or one of `allowed`.
    pub fn only(&self, key: &str, allowed: &[Value]) -> Result<()> {
        match self.find(&[key]) {
            Some((key, value)) if !allowed.contains(value) => {
                let allowed: Vec<String> = allowed.iter().map(Value::to_string).collect();
                Err(self.error(
                    &[key],
                    format!("{value} is not supported, only {}", allowed.join(" or ")),
                ))
            }
            _ => Ok(()),
        }
    }
}

/// The start of a text that may have megabytes.
pub(super) fn abbreviated(text: String) -> String {
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::checkpoint::scheme::ConfigKeys;

    #[test]
    fn copies_and_sections_share_the_record_of_keys_that_were_read() -> Result<()> {
        let contents = json!({
            "architectures": ["A"],
            "text": {"n_wide": 3, "num_labels": 2, "own": 5, "depth": {"a": 1, "b": 2}, "forgotten": 4},
            "dropout": 0.1, "unknown": {"x": 1}, "num_labels": 3, "own": 4
        });
        let file = ConfigJson::given(Path::new("config.json"), contents);
        let keys = ConfigKeys {
            handed_on: vec!["own".into()],
            section: Some("text".into()),
            renamed: [("width".to_string(), "n_wide".to_string())].into(),
            ..ConfigKeys::default()
        };
        let seen = keys.seen(&file)?.with_default("other", 1);
        // What the whole says of both.
        assert_eq!((seen.size(&["num_labels"])?, seen.size(&["own"])?), (3, 4));
        assert_eq!(seen.size(&["width"])?, 3);
        assert_eq!(seen.unread(&["depth"]), ["text.forgotten"]);
        let depth = seen.section(&["depth"])?;
        assert_eq!(depth.map(|depth| depth.size(&["a"])).transpose()?, Some(1));
        assert_eq!(
            file.unread(&["dropout"]),
            ["text.depth.b", "text.forgotten", "unknown"]
        );
        Ok(())
    }
}
