//! Reads `config.json`: keys with aliases and defaults, and errors that name the key.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use self::read_keys::{ReadKeys, joined};
use crate::bytes::limited::{is_named, read_limited};
use crate::python_json;

mod read_keys;
use candle_blocks_base::MAX_SIZE;
use candle_blocks_base::{Error, Result};

/// The size limit; a `config.json` usually has a few kilobytes.
const MAX_BYTES: u64 = 10_000_000;
/// The length limit for names of families, activations and the like.
const MAX_TEXT_BYTES: usize = 1000;
/// The number of characters of a wrong value that a message shows.
const SHOWN_CHARACTERS: usize = 200;

/// Types of layers in `layer_types`: attention to all earlier positions, and with a sliding window.
const FULL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
/// The limit for the number of blocks: ten times the deepest published transformer (DeepNet, 1,000 layers,
/// <https://arxiv.org/abs/2203.00555>).
#[doc(hidden)]
pub const MAX_BLOCKS: usize = 10_000;

/// A checkpoint's `config.json`, or another JSON file beside it.
///
/// Records which keys were read. All copies and sections of a file share this record.
#[derive(Clone, Debug)]
pub struct ConfigJson {
    path: PathBuf,
    value: Value,
    /// The path of this section in the file; `None` for the whole file.
    section: Option<String>,
    /// A key's spelling in the file, where it differs from the requested key.
    renamed: BTreeMap<String, String>,
    /// The keys that were read so far.
    read: Arc<ReadKeys>,
    /// Values for keys that the file lacks: the defaults of transformers' configuration class.
    class: Arc<Map<String, Value>>,
    /// The file may lack its required sizes too, as a section does.
    may_lack_sizes: bool,
}

impl ConfigJson {
    /// Reads and parses a file.
    ///
    /// # Errors
    /// If it cannot be read, is not JSON, or is not an object.
    pub fn open(path: &Path) -> Result<Self> {
        Self::read(path, |_| ())
    }

    /// Reads and parses a file whose lines that begin with `//` are comments.
    ///
    /// # Errors
    /// The errors of [`Self::open`].
    #[doc(hidden)]
    pub fn open_commented(path: &Path) -> Result<Self> {
        Self::read(path, blank_comments)
    }

    fn read(path: &Path, edit: fn(&mut [u8])) -> Result<Self> {
        let own = path.file_name().and_then(|name| name.to_str());
        let name = own.filter(|name| name.ends_with(".json"));
        let mut text = read_limited(path, MAX_BYTES, name.unwrap_or("config.json"))?;
        edit(&mut text);
        let malformed = |reason: String| Error::MalformedJson {
            path: path.to_path_buf(),
            reason,
        };
        let value: Value = python_json::parsed(&text).map_err(malformed)?;
        if !value.is_object() {
            return Err(Error::UnexpectedJson {
                path: path.to_path_buf(),
                reason: "expected a JSON object".to_string(),
            });
        }
        Ok(Self::given(path, value))
    }

    /// Reads and parses an optional file.
    ///
    /// # Errors
    /// The errors of [`Self::open`]. Anything else with that name, such as a broken link, does not count as a missing file.
    #[doc(hidden)]
    pub fn open_named(path: &Path) -> Result<Option<Self>> {
        is_named(path).then(|| Self::open(path)).transpose()
    }

    /// Makes the contents of a file that will be at `path`.
    #[doc(hidden)]
    pub fn given(path: &Path, value: Value) -> Self {
        Self {
            path: path.to_path_buf(),
            read: Arc::new(ReadKeys::new(value.clone())),
            value,
            section: None,
            renamed: BTreeMap::new(),
            class: Arc::default(),
            may_lack_sizes: false,
        }
    }

    /// Returns a copy that reads keys which the file lacks from `class`, the defaults of transformers' configuration class; required
    /// sizes too if `may_lack_sizes`. An object in `class` has the defaults of a section. A key that is null in the file has no default.
    #[doc(hidden)]
    pub fn with_class(&self, class: Map<String, Value>, may_lack_sizes: bool) -> Self {
        Self {
            class: Arc::new(class),
            may_lack_sizes,
            ..self.clone()
        }
    }

    /// Returns the paths of keys in this file or section that nothing has read so far. Leaves out the keys in `harmless`,
    /// which are paths from here, with everything inside them. A key whose value is null counts as absent.
    ///
    /// A reader of a file calls this last. It refuses an unread key by name if that key would change results.
    #[doc(hidden)]
    pub fn unread(&self, harmless: &[&str]) -> Vec<String> {
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

    /// Adds the file's path to a configuration error, and the file's sizes of 0 to an error about one: several keys together
    /// may be at fault.
    #[doc(hidden)]
    pub fn located(&self, error: Error) -> Error {
        let zeros = self.read.zeros();
        let error = match error {
            Error::InvalidConfig(reason) if reason.contains(" 0") && !zeros.is_empty() => {
                Error::InvalidConfig(format!("{reason}; the file has 0 for {}", zeros.join(", ")))
            }
            other => other,
        };
        error.located(&self.path)
    }

    /// Records that `key`, a path from here, was read.
    fn record(&self, key: &str) {
        let key = self.renamed.get(key).map_or(key, String::as_str);
        self.read.record(joined(self.section.as_deref(), key));
    }

    /// Returns the file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a copy in which `key`, if absent, has the given value: the default of the family's configuration class.
    pub fn with_default(&self, key: &str, value: impl Into<Value>) -> Self {
        let mut changed = self.clone();
        if let Some(object) = changed.value.as_object_mut() {
            object.entry(key).or_insert(value.into());
        }
        changed
    }

    /// Returns a copy in which `key` has the given value, whatever it has in the file.
    pub fn with(&self, key: &str, value: impl Into<Value>) -> Self {
        self.without(key).with_default(key, value)
    }

    /// Returns a copy without `key`, for a key that is read elsewhere.
    pub fn without(&self, key: &str) -> Self {
        let mut changed = self.clone();
        if let Some(object) = changed.value.as_object_mut() {
            object.remove(key);
        }
        if changed.class.contains_key(key) {
            Arc::make_mut(&mut changed.class).remove(key);
        }
        changed
    }

    /// Returns the first of `keys` that is present and not null, or the class's default if the file has none of them.
    fn find<'k>(&self, keys: &[&'k str]) -> Option<(&'k str, &Value)> {
        keys.iter().for_each(|key| self.record(key));
        if keys.iter().any(|key| self.value.get(key).is_some()) {
            return self.value_of(keys);
        }
        keys.iter()
            .find_map(|&key| Some((key, self.class.get(key)?)))
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

    /// Returns the value under one of `keys`, read by `parse`; `None` if no key is present.
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

    /// Reads a required size.
    pub fn size(&self, keys: &[&str]) -> Result<usize> {
        let is_missing = !self.may_lack_sizes && self.value_of(keys).is_none();
        let size = self.optional_size(keys)?.filter(|_| !is_missing);
        size.ok_or_else(|| self.error(keys, "missing, expected an integer"))
    }

    /// Reads an optional size; `None` if absent or null.
    pub fn optional_size(&self, keys: &[&str]) -> Result<Option<usize>> {
        self.optional(keys, &format!("an integer up to {MAX_SIZE}"), |value| {
            let size = usize::try_from(value.as_u64()?).ok()?;
            Some(size).filter(|&size| size <= MAX_SIZE)
        })
    }

    /// Reads a size, or returns `default` if absent or null.
    pub fn size_or(&self, keys: &[&str], default: usize) -> Result<usize> {
        Ok(self.optional_size(keys)?.unwrap_or(default))
    }

    /// Reads a size above 0, or returns `default` if absent or null.
    #[doc(hidden)]
    pub fn width_or(&self, keys: &[&str], default: usize) -> Result<usize> {
        match self.size_or(keys, default)? {
            0 => Err(self.error(keys, "found 0, expected a positive number")),
            width => Ok(width),
        }
    }

    /// Reads a size that `null` disables; returns `default` if absent.
    pub fn switchable_size(&self, key: &str, default: usize) -> Result<Option<usize>> {
        match self.value.get(key).or(self.class.get(key)) {
            None => Ok(Some(default)),
            Some(_) => self.optional_size(&[key]),
        }
    }

    /// Reads a number that `null` disables; returns `default` if absent.
    pub fn switchable_number(&self, key: &str, default: f64) -> Result<Option<f64>> {
        match self.value.get(key).or(self.class.get(key)) {
            None => Ok(Some(default)),
            Some(_) => self.optional_number(&[key]),
        }
    }

    /// Reads the number of blocks, which is required.
    pub fn n_blocks(&self, keys: &[&str]) -> Result<usize> {
        let n_blocks = self.size(keys)?;
        self.n_blocks_or(keys, n_blocks)
    }

    /// Reads the number of blocks, or returns `default` if absent.
    pub fn n_blocks_or(&self, keys: &[&str], default: usize) -> Result<usize> {
        let n_blocks = self.size_or(keys, default)?;
        if !(1..=MAX_BLOCKS).contains(&n_blocks) {
            let reason = format!("found {n_blocks}, expected 1 to {MAX_BLOCKS} blocks");
            return Err(self.error(keys, reason));
        }
        Ok(n_blocks)
    }

    /// Reads a number, or returns `default` if absent.
    pub fn number(&self, keys: &[&str], default: f64) -> Result<f64> {
        let number = self.optional(keys, "a finite number", Value::as_f64)?;
        Ok(number.unwrap_or(default))
    }

    /// Returns the number, if it is above 0.
    #[doc(hidden)]
    pub fn positive(&self, number: f64, keys: &[&str]) -> Result<f64> {
        match number > 0.0 {
            true => Ok(number),
            false => Err(self.error(keys, format!("found {number}, expected a positive number"))),
        }
    }

    /// Returns whether a key is present and null, which transformers' classes take for false or for the default, by the key.
    #[doc(hidden)]
    pub fn is_null(&self, key: &str) -> bool {
        self.at(key).is_some_and(Value::is_null)
    }

    /// Reads a boolean, or returns `default` if absent.
    pub fn flag(&self, keys: &[&str], default: bool) -> Result<bool> {
        let flag = self.optional(keys, "true or false", Value::as_bool)?;
        Ok(flag.unwrap_or(default))
    }

    /// Reads an optional string.
    pub fn text(&self, keys: &[&str]) -> Result<Option<String>> {
        let kind = format!("a string of up to {MAX_TEXT_BYTES} bytes");
        self.optional(keys, &kind, |value| {
            let text = value.as_str()?;
            (text.len() <= MAX_TEXT_BYTES).then(|| text.to_string())
        })
    }

    /// Reads an activation by its name, or returns `default` if absent. `A` is candle-blocks' `Activation`.
    pub fn activation<A: FromStr<Err = Error>>(&self, keys: &[&str], default: A) -> Result<A> {
        match self.text(keys)? {
            None => Ok(default),
            Some(name) => self.activation_named(&name, keys),
        }
    }

    /// Returns the activation called `name`, which was read from one of `keys`.
    #[doc(hidden)]
    pub fn activation_named<A: FromStr<Err = Error>>(
        &self,
        name: &str,
        keys: &[&str],
    ) -> Result<A> {
        let unknown = |e: Error| self.error(keys, e.to_string());
        name.parse().map_err(unknown)
    }

    /// Reads an optional number; `None` if absent or null.
    pub fn optional_number(&self, keys: &[&str]) -> Result<Option<f64>> {
        self.optional(keys, "a finite number", Value::as_f64)
    }

    /// Reads an optional list of floating-point values.
    pub fn numbers(&self, keys: &[&str]) -> Result<Option<Vec<f64>>> {
        self.optional(keys, "a list of finite numbers", |value| {
            value.as_array()?.iter().map(Value::as_f64).collect()
        })
    }

    /// Reads a special token from a `tokenizer_config.json`, which is a string or an object with a string; `None` if absent.
    #[doc(hidden)]
    pub fn special_token(&self, key: &str) -> Result<Option<String>> {
        self.optional(&[key], "a token", |value| {
            let text = value.get("content").unwrap_or(value);
            text.as_str().map(str::to_string)
        })
    }

    /// Reads chat templates by name; a single template is called `default`. `None` if absent.
    #[doc(hidden)]
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

    /// Reads an optional list of strings.
    pub fn texts(&self, keys: &[&str]) -> Result<Option<Vec<String>>> {
        self.optional(keys, "a list of strings", |value| {
            let text = |value: &Value| value.as_str().map(str::to_string);
            value.as_array()?.iter().map(text).collect()
        })
    }

    /// Reads strings given as lists with a number of repetitions, `[[["global", "local"], 12]]`; `None` if absent.
    #[doc(hidden)]
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
        self.optional(
            &[key],
            "lists of strings with a number of repetitions",
            parse,
        )
    }

    /// Returns for each layer whether it has a sliding window: from `layer_types`, or without it from `default`.
    pub fn sliding_layers(
        &self,
        n_layers: usize,
        default: impl Fn(usize) -> bool,
    ) -> Result<Vec<bool>> {
        let kind = |i: usize| match default(i) {
            true => SLIDING,
            false => FULL,
        };
        let types = self.layer_types(n_layers, &[FULL, SLIDING], kind)?;
        Ok(types.iter().map(|&kind| kind == SLIDING).collect())
    }

    /// Returns each layer's type, one of `known`, from `layer_types`. Without the key, `default` decides.
    ///
    /// # Errors
    /// If the key lists another number of layers, or another type.
    #[doc(hidden)]
    pub fn layer_types<'k>(
        &self,
        n_layers: usize,
        known: &[&'k str],
        default: impl Fn(usize) -> &'k str,
    ) -> Result<Vec<&'k str>> {
        let key = "layer_types";
        match self.texts(&[key])? {
            None => Ok((0..n_layers).map(default).collect()),
            Some(types) if types.len() == n_layers => {
                let one = |kind: &String| {
                    let kind = match kind.as_str() {
                        "attention" => FULL, // an older name
                        kind => kind,
                    };
                    known.iter().copied().find(|of| *of == kind).ok_or_else(|| {
                        let known: Vec<String> = known.iter().map(|of| format!("{of:?}")).collect();
                        let known = known.join(" and ");
                        self.error(&[key], format!("{kind:?} is not supported, only {known}"))
                    })
                };
                types.iter().map(one).collect()
            }
            Some(types) => {
                let reason = format!("lists {} layers, expected {n_layers}", types.len());
                Err(self.error(&[key], reason))
            }
        }
    }

    /// Returns the names of all keys.
    #[doc(hidden)]
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let object = self.value.as_object();
        object.into_iter().flatten().map(|(key, _)| key.as_str())
    }

    /// Returns all keys with their values.
    #[doc(hidden)]
    pub fn entries(&self) -> impl Iterator<Item = (&String, &Value)> {
        self.value.as_object().into_iter().flatten()
    }

    /// Returns the value under `key`, deserialized as a `T`; `None` if absent or null.
    #[doc(hidden)]
    pub fn parsed<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>> {
        let parse = |(key, value)| {
            let parsed = serde_json::from_value(Value::clone(value)); // deserializing by reference would compile every type once more
            parsed.map_err(|e| self.error(&[key], e.to_string()))
        };
        self.find(&[key]).map(parse).transpose()
    }

    /// Returns a nested object, such as `text_config`; `None` if absent or null.
    pub fn section(&self, keys: &[&str]) -> Result<Option<Self>> {
        let Some((key, value)) = self.value_of(keys) else {
            return Ok(None);
        };
        match value.is_object() {
            true => Ok(Some(self.inside(key, value.clone()))),
            false => self.optional(&[key], "an object", |_| None),
        }
    }

    /// Returns the object under `key`, or the value that replaces it. Its keys are recorded as keys of that object.
    #[doc(hidden)]
    pub fn inside(&self, key: &str, value: Value) -> Self {
        let key = self.renamed.get(key).map_or(key, String::as_str);
        let section_defaults = self.class.get(key).and_then(Value::as_object);
        Self {
            section: Some(joined(self.section.as_deref(), key)),
            renamed: BTreeMap::new(),
            class: Arc::new(section_defaults.cloned().unwrap_or_default()),
            may_lack_sizes: true,
            ..self.with_value(value, BTreeMap::new())
        }
    }

    /// Returns the value at a path, whose keys are separated by dots. The value may be null.
    #[doc(hidden)]
    pub fn at(&self, path: &str) -> Option<&Value> {
        self.record(path);
        self.value_at(path)
    }

    /// Like [`Self::at`], but does not record the key as read.
    #[doc(hidden)]
    pub fn value_at(&self, path: &str) -> Option<&Value> {
        path.split('.')
            .try_fold(&self.value, |value, key| value.get(key))
    }

    /// Returns the whole object.
    #[doc(hidden)]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Returns the same file with other contents; `renamed` maps keys to their spelling in the former contents.
    #[doc(hidden)]
    pub fn with_value(&self, value: Value, renamed: BTreeMap<String, String>) -> Self {
        let mut all = self.renamed.clone();
        all.extend(renamed.into_iter().map(|(key, former)| {
            let in_file = self.renamed.get(&former).cloned();
            (key, in_file.unwrap_or(former))
        }));
        Self {
            path: self.path.clone(),
            value,
            section: self.section.clone(),
            renamed: all,
            read: Arc::clone(&self.read),
            class: Arc::clone(&self.class),
            may_lack_sizes: self.may_lack_sizes,
        }
    }

    /// Refuses an unsupported feature: `key` must be absent or one of `allowed`.
    pub fn only(&self, key: &str, allowed: &[Value]) -> Result<()> {
        self.record(key);
        match self.value_of(&[key]) {
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

/// Writes spaces over comments: lines that begin with `//`. JSON has no string of several lines.
#[doc(hidden)]
pub fn blank_comments(text: &mut [u8]) {
    for line in text.split_mut(|byte| *byte == b'\n') {
        if line.trim_ascii_start().starts_with(b"//") {
            line.fill(b' ');
        }
    }
}

/// Returns the start of a text that may be very long.
#[doc(hidden)]
pub fn abbreviated(text: String) -> String {
    match text.char_indices().nth(SHOWN_CHARACTERS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
