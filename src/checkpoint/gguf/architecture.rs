//! Tables for GGUF architectures: tensor names, keys, and what llama.cpp's converter changed.
//!
//! A file in `architectures/` holds entries, as [`table`](crate::checkpoint::scheme::table) reads them. `name` is the architecture's,
//! `read_as` the `model_type` that it reads as; an entry without it is a base for others. An entry that is `like` another has its keys
//! too, except for `when`, `written` and the names in `omit`. The fields of [`Architecture`] say what each key means.

use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::checkpoint::scheme::table::{Entries, Table, tables};

/// Names with their translations or the like.
type Names = Entries<&'static str, &'static str>;

/// One entry.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Architecture {
    /// The name in `general.architecture`; a base has its own.
    pub name: &'static str,
    /// transformers' `model_type`; empty for a base.
    #[serde(rename = "read_as")]
    pub model_type: &'static str,
    like: Option<&'static str>,
    /// Keys in `config.json`, modules and patterns that the other entry has, and this one has not.
    omit: Vec<&'static str>,
    /// The entry is for files that meet all of these; an architecture's first that fits counts.
    #[serde(rename = "when")]
    pub conditions: Entries<Condition, &'static str>,
    /// Keys in `config.json`, with a key there, its kind, and perhaps a default.
    pub keys: Entries<&'static str, Key>,
    /// Keys in `config.json` with a value for all files.
    pub set: Entries<&'static str, Value>,
    /// Keys in `config.json` that say whether one of some tensors exists.
    pub exists: Names,
    /// Keys in `config.json` that say whether none of some tensors exists.
    pub absent: Names,
    /// Keys in `config.json` with a tensor's first dimension.
    pub rows: Names,
    /// Keys in `config.json` with a function in `computed.rs` and its arguments, for values that stand in several keys.
    pub calls: Names,
    /// The prefix that transformers' names have in a block `{i}`.
    #[serde(rename = "block")]
    pub blocks: &'static str,
    /// Modules in blocks, here and in transformers. `{e}` is a part's index in a stack; a name with `!` has no `.weight` or `.bias`.
    /// A tensor whose parameter has another name (`ffn_gate_inp.scale`) may be named whole.
    #[serde(rename = "block_names")]
    pub modules: Names,
    /// Modules outside the blocks.
    #[serde(rename = "end_names")]
    pub ends: Names,
    /// The converter's step that is undone as a tensor of the module is read; `*` in front stands for any text.
    pub steps: Entries<&'static str, Step>,
    /// Keys that change nothing with these values; without values, always.
    #[serde(rename = "same")]
    pub neutral: Entries<&'static str, Vec<Value>>,
    /// Keys that must be there, because llama.cpp's default is none of the values that change nothing.
    pub required: Vec<&'static str>,
    /// Modules whose tensors are not read.
    #[serde(rename = "drop")]
    pub dropped: Vec<&'static str>,
    /// Modules whose bias must be in the file: patterns with `*`. Any other bias that is missing is 0, as in llama.cpp.
    pub biased: Vec<&'static str>,
    /// The largest size under a key.
    #[serde(rename = "most")]
    pub limits: Entries<&'static str, u64>,
    /// The smallest size under a key, if the file has it.
    pub least: Entries<&'static str, u64>,
    /// True if the value heads of a gated delta rule have [another order](super::names::value_heads).
    pub orders_value_heads: bool,
    /// True if transformers' names have no prefix `model.`.
    #[serde(rename = "bare")]
    pub is_bare: bool,
    /// True if `quantize` writes files by this entry.
    #[serde(rename = "written")]
    pub is_written: bool,
}

/// A condition on a file: it has a key or a tensor, or has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Condition {
    Key,
    NoKey,
    Tensor,
    NoTensor,
}

/// The kind for a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// A whole number that must be there; as a length it is not 0.
    Needed,
    /// A whole number.
    Size,
    /// A whole number, where 0 means none.
    Switch,
    /// A number with 32 bits in the file.
    Number,
    /// The same, where 0 means 1.
    Factor,
    /// The same, where 0 means none.
    Cap,
    /// The same, above 0.
    Positive,
    Flag,
    /// Any value, such as an array with an item for each layer.
    Any,
}

/// A key there without the architecture, as a list in the table.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Key {
    pub gguf: &'static str,
    pub kind: Kind,
    /// The value where the file has none; `@` and another key, or `!` and a function, stand for theirs.
    #[serde(default, deserialize_with = "present")]
    pub default: Option<Value>,
}

/// A step of the converter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Step {
    QueryPairs,
    KeyPairs,
    FusedPairs,
    LessOne,
    OneRow,
    Channels,
    Vector,
    NegatedExponential,
    NegatedExponentials,
}

/// Returns a value that is there, null included.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

const FILES: [&str; 7] = [
    include_str!("architectures/bases.json"),
    include_str!("architectures/llama.json"),
    include_str!("architectures/gemma.json"),
    include_str!("architectures/experts.json"),
    include_str!("architectures/hybrids.json"),
    include_str!("architectures/older.json"),
    include_str!("architectures/encoders.json"),
];

/// All entries that are no bases.
pub(super) fn all() -> impl Iterator<Item = &'static Architecture> {
    static ALL: LazyLock<Vec<Architecture>> = LazyLock::new(|| {
        // A test reads every entry.
        tables(&FILES).unwrap_or_default()
    });
    ALL.iter().filter(|entry| !entry.model_type.is_empty())
}

/// All architectures' names, or the written model types, for a message.
pub(super) fn listed(of: impl Fn(&Architecture) -> Option<&'static str>) -> String {
    let mut names: Vec<&str> = all().filter_map(of).collect();
    names.sort_unstable();
    names.dedup();
    names.join(", ")
}

/// The entry by which a `model_type` is written.
pub(super) fn written(model_type: &str) -> Option<&'static Architecture> {
    all().find(|entry| entry.is_written && entry.model_type == model_type)
}

impl Table for Architecture {
    fn names(&self) -> (&'static str, Option<&'static str>) {
        (self.name, self.like)
    }

    fn add(&mut self, base: &Self) {
        // A key in `config.json` has one source.
        let keys = self.keys.iter().map(|(key, _)| *key);
        let set = self.set.iter().map(|(key, _)| *key);
        let names = [&self.exists, &self.absent, &self.rows, &self.calls];
        let names = names.into_iter().flat_map(|names| names.iter());
        let own: Vec<&str> = keys.chain(set).chain(names.map(|(key, _)| *key)).collect();
        let omit = |name: &'static str| self.omit.contains(&name);
        let is_said = |key: &'static str| omit(key) || own.contains(&key);
        let is_dropped = |module: &'static str| omit(module) || self.dropped.contains(&module);
        self.keys.add(&base.keys, is_said);
        self.set.add(&base.set, is_said);
        self.exists.add(&base.exists, is_said);
        self.absent.add(&base.absent, is_said);
        self.rows.add(&base.rows, is_said);
        self.calls.add(&base.calls, is_said);
        self.modules.add(&base.modules, is_dropped);
        self.ends.add(&base.ends, |_| false);
        self.steps.add(&base.steps, omit);
        let is_free = |key: &&&'static str| !omit(key) && self.neutral.get(**key).is_none();
        let required = base.required.iter().filter(is_free).copied();
        self.required.extend(required);
        self.neutral.add(&base.neutral, omit);
        self.dropped.extend(&base.dropped);
        self.biased.extend(&base.biased);
        self.limits.add(&base.limits, |_| false);
        self.least.add(&base.least, |_| false);
        self.orders_value_heads |= base.orders_value_heads;
        self.is_bare |= base.is_bare;
        if self.blocks.is_empty() {
            self.blocks = base.blocks;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::families;

    #[test]
    fn every_entry_is_read_and_every_model_type_and_function_is_known() {
        let entries: Vec<Architecture> = tables(&FILES).unwrap();
        assert!(entries.len() > 90, "only {}", entries.len());
        for entry in entries.iter().filter(|entry| !entry.model_type.is_empty()) {
            let is_known = families::all().any(|family| {
                let mut names = family.model_types.iter();
                names.any(|name| name == entry.model_type)
            });
            assert!(is_known, "{} = {}", entry.name, entry.model_type);
            let defaults = entry.keys.iter().filter_map(|(_, key)| {
                let text = key.default.as_ref()?.as_str()?;
                text.strip_prefix('!')
            });
            let calls = entry
                .calls
                .iter()
                .filter_map(|(_, call)| call.split(' ').next());
            for function in defaults.chain(calls) {
                let is_known = crate::checkpoint::gguf::config::computed::is_known(function);
                assert!(is_known, "{}: {function}", entry.name);
            }
        }
    }

    #[test]
    fn a_plain_architecture_takes_at_most_fifteen_lines() {
        let long = FILES[1]
            .split("\n{ ")
            .skip(1)
            .filter(|entry| entry.lines().count() > 15);
        let long: Vec<&str> = long.filter_map(|entry| entry.lines().next()).collect();
        assert!(long.is_empty(), "{long:?}");
    }
}
