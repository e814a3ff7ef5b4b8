//! Tables for GGUF architectures: tensor names, keys, and what llama.cpp's converter changed.
//!
//! A file in `architectures/` holds entries. The heading `[olmo2 = olmo2]` names the architecture and the `model_type` that it reads
//! as; `[decoder]` is a base for others. Lines are:
//!
//! ```text
//! like BASE                        all lines in an entry before; later lines for the same name replace them
//! when key KEY | no-key KEY        the entry is for files with this key, or without it; an architecture's first that fits counts
//! when tensor NAME | no-tensor NAME
//! key GGUF JSON KIND [DEFAULT]     a key; KIND is needed, size, switch (a size, where 0 is null), number, factor (a number, where 0 is 1), cap (where 0 is null), positive, flag or any; DEFAULT is JSON, `@` and another key, or `!` and a function
//! set JSON VALUE                   a value for all files
//! is JSON TENSOR | no JSON TENSOR  whether a tensor exists, or not
//! rows JSON TENSOR                 a tensor's first dimension
//! call JSON FUNCTION [ARGUMENTS]   a value that a function in `computed.rs` makes from several keys
//! blocks PREFIX                    transformers' prefix for names in a block `{i}`
//! block MODULE NAME                a module in a block; `{e}` numbers the parts in a stack; a name with `!` has no `.weight` or `.bias`
//! end MODULE NAME                  a module outside the blocks
//! step MODULE STEP                 what is undone as a tensor is read: see `Step`
//! omit JSON                        leaves out a line from an entry before: `key`, `set` and so on, `same`, or `block`
//! biased MODULES                   modules whose bias must be in the file; any other bias that is missing is 0, as in llama.cpp
//! limit KEY SIZE                   files with a larger size are refused
//! least KEY SIZE                   files with a smaller size are refused
//! bare                             names without transformers' prefix `model.`
//! same KEY VALUES                  a key that changes nothing with these values, or with `*` any
//! only KEY VALUES                  the same for a key that has to be there, because llama.cpp's default is none of these values
//! drop MODULE                      a tensor that is not read
//! written                          `quantize` writes files by this entry
//! ```

use std::sync::LazyLock;

use serde_json::Value;

/// One entry.
#[derive(Clone, Debug, Default)]
pub(super) struct Architecture {
    /// The name in `general.architecture`; a base has its own.
    pub name: &'static str,
    /// transformers' `model_type`; empty for a base.
    pub model_type: &'static str,
    pub conditions: Vec<(Condition, &'static str)>,
    pub keys: Vec<Key>,
    /// Keys in `config.json` with each value's source.
    pub values: Vec<(&'static str, Source)>,
    /// The prefix that transformers' names have in a block.
    pub blocks: &'static str,
    /// Modules in blocks, here and in transformers.
    pub modules: Vec<(&'static str, &'static str)>,
    /// Modules outside the blocks.
    pub ends: Vec<(&'static str, &'static str)>,
    pub steps: Vec<(&'static str, &'static str)>,
    /// Keys that change nothing with these values; without values, always.
    pub neutral: Vec<(&'static str, Vec<Value>)>,
    /// Keys that must be there.
    pub required: Vec<&'static str>,
    pub dropped: Vec<&'static str>,
    /// Modules whose bias must be in the file: patterns with `*`.
    pub biased: Vec<&'static str>,
    /// The largest size under a key.
    pub limits: Vec<(&'static str, u64)>,
    /// The smallest size under a key, if the file has it.
    pub least: Vec<(&'static str, u64)>,
    /// True if transformers' names have no prefix `model.`.
    pub is_bare: bool,
    pub is_written: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Key,
    NoKey,
    Tensor,
    NoTensor,
}

/// The kind for a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// A key there without the architecture, and the one in `config.json`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub gguf: &'static str,
    pub json: &'static str,
    pub kind: Kind,
    /// The value where the file has none.
    pub default: Option<&'static str>,
}

/// The source for a value in `config.json`.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Literal(Value),
    /// True if a tensor exists.
    Exists(&'static str),
    Absent(&'static str),
    Rows(&'static str),
    /// A function, with its arguments.
    Call(&'static str, &'static str),
}

const FILES: [&str; 6] = [
    include_str!("architectures/bases.txt"),
    include_str!("architectures/llama.txt"),
    include_str!("architectures/gemma.txt"),
    include_str!("architectures/experts.txt"),
    include_str!("architectures/older.txt"),
    include_str!("architectures/encoders.txt"),
];

/// All entries that are no bases.
pub(super) fn all() -> impl Iterator<Item = &'static Architecture> {
    static ALL: LazyLock<Vec<Architecture>> = LazyLock::new(|| {
        // A test reads every line.
        parsed(&FILES).unwrap_or_default()
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

fn parsed(files: &[&'static str]) -> Result<Vec<Architecture>, String> {
    let mut entries: Vec<Architecture> = vec![];
    for line in files.iter().flat_map(|file| file.lines()) {
        let line = line.split_once(" #").map_or(line, |(line, _)| line).trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if let Some(heading) = line.strip_prefix('[') {
            let heading = heading.strip_suffix(']').ok_or(line)?;
            let (name, model_type) = heading.split_once(" = ").unwrap_or((heading, ""));
            entries.push(Architecture {
                name,
                model_type,
                ..Architecture::default()
            });
            continue;
        }
        let Some((entry, before)) = entries.split_last_mut() else {
            return Err(line.to_string());
        };
        entry.add(line, before).ok_or(line)?;
    }
    Ok(entries)
}

impl Architecture {
    fn add(&mut self, line: &'static str, before: &[Self]) -> Option<()> {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        let (first, second) = rest.split_once(' ').unwrap_or((rest, ""));
        let second = second.trim();
        match verb {
            "like" => {
                let base = before.iter().rev().find(|entry| entry.name == first)?;
                *self = Self {
                    name: self.name,
                    model_type: self.model_type,
                    conditions: std::mem::take(&mut self.conditions),
                    is_written: false,
                    ..base.clone()
                };
            }
            "when" => {
                let condition = match first {
                    "key" => Condition::Key,
                    "no-key" => Condition::NoKey,
                    "tensor" => Condition::Tensor,
                    "no-tensor" => Condition::NoTensor,
                    _ => return None,
                };
                self.conditions.push((condition, second));
            }
            "key" => {
                let mut words = second.splitn(3, ' ');
                let (json, kind) = (words.next()?, words.next()?);
                let kind = match kind {
                    "needed" => Kind::Needed,
                    "size" => Kind::Size,
                    "switch" => Kind::Switch,
                    "number" => Kind::Number,
                    "factor" => Kind::Factor,
                    "cap" => Kind::Cap,
                    "positive" => Kind::Positive,
                    "flag" => Kind::Flag,
                    "any" => Kind::Any,
                    _ => return None,
                };
                let key = Key {
                    gguf: first,
                    json,
                    kind,
                    default: words.next(),
                };
                self.forget(json);
                self.keys.push(key);
            }
            "set" => self.put(first, Source::Literal(serde_json::from_str(second).ok()?)),
            "is" => self.put(first, Source::Exists(second)),
            "no" => self.put(first, Source::Absent(second)),
            "rows" => self.put(first, Source::Rows(second)),
            "call" => {
                let (function, arguments) = second.split_once(' ').unwrap_or((second, ""));
                self.put(first, Source::Call(function, arguments));
            }
            "blocks" => self.blocks = first,
            "block" => replace(&mut self.modules, first, second),
            "end" => replace(&mut self.ends, first, second),
            "step" => replace(&mut self.steps, first, second),
            "same" | "only" => {
                self.required.retain(|key| *key != first);
                if verb == "only" {
                    self.required.push(first);
                }
                let values = second.split(' ').filter(|value| *value != "*");
                let values = values.map(serde_json::from_str).collect::<Result<_, _>>();
                self.neutral.push((first, values.ok()?));
            }
            "drop" => {
                self.modules.retain(|(module, _)| *module != first);
                self.dropped.push(first);
            }
            "omit" => {
                self.forget(first);
                self.neutral.retain(|(pattern, _)| *pattern != first);
                self.modules.retain(|(module, _)| *module != first);
                self.required.retain(|key| *key != first);
            }
            "biased" => self.biased.extend(rest.split(' ')),
            "limit" => self.limits.push((first, second.parse().ok()?)),
            "least" => self.least.push((first, second.parse().ok()?)),
            "bare" => self.is_bare = true,
            "written" => self.is_written = true,
            _ => return None,
        }
        Some(())
    }

    /// Leaves out what was said about a key in `config.json`.
    fn forget(&mut self, json: &str) {
        self.keys.retain(|key| key.json != json);
        self.values.retain(|(key, _)| *key != json);
    }

    fn put(&mut self, json: &'static str, source: Source) {
        self.forget(json);
        self.values.push((json, source));
    }
}

fn replace(
    all: &mut Vec<(&'static str, &'static str)>,
    name: &'static str,
    translated: &'static str,
) {
    all.retain(|(known, _)| *known != name);
    all.push((name, translated));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::families;

    #[test]
    fn every_line_is_read_and_every_model_type_is_known() {
        let entries = parsed(&FILES).unwrap();
        assert!(entries.len() > 12);
        for entry in entries.iter().filter(|entry| !entry.model_type.is_empty()) {
            let is_known = families::all().any(|family| {
                family
                    .model_types
                    .iter()
                    .any(|name| name == entry.model_type)
            });
            assert!(is_known, "{} = {}", entry.name, entry.model_type);
            let is_called = |source: &Source| match source {
                Source::Call(function, _) => {
                    crate::checkpoint::gguf::config::computed::is_known(function)
                }
                _ => true,
            };
            assert!(
                entry.values.iter().all(|(_, source)| is_called(source)),
                "{}",
                entry.name
            );
        }
    }

    #[test]
    fn a_plain_architecture_takes_at_most_fifteen_lines() {
        let count = |file: &str| {
            let all = file.split("\n[").skip(1);
            let lines = |entry: &str| entry.lines().filter(|line| !line.trim().is_empty()).count();
            all.map(|entry| {
                (
                    entry.lines().next().unwrap_or_default().to_string(),
                    lines(entry),
                )
            })
            .collect::<Vec<_>>()
        };
        let long: Vec<_> = count(FILES[1])
            .into_iter()
            .filter(|(_, n)| *n > 15)
            .collect();
        assert!(long.is_empty(), "{long:?}");
    }
}
