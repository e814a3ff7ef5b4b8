//! Keys in `config.json` that do not change a forward pass, and keys that nothing reads.

use serde_json::Value;

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::scheme::matches;

/// Returns the paths of keys that were not read and are not known to change nothing. transformers keeps such a key as an
/// attribute of the configuration, where code on the Hub may read it.
pub(crate) fn unknown(json: &ConfigJson) -> Vec<String> {
    let model_type = json.value_at("model_type").and_then(Value::as_str);
    let model_type = model_type.unwrap_or_default();
    let mut unread = json.unread(&[]);
    unread.retain(|path| {
        let value = json.value_at(path).unwrap_or(&Value::Null);
        !is_harmless(model_type, path, value)
    });
    unread
}

/// Returns the keys that neither of a file's two readers knows.
pub(crate) fn of_both(one: &[String], other: &[String]) -> Vec<String> {
    let is_inside = |path: &String, all: &[String]| {
        all.iter().any(|known| {
            let rest = path.strip_prefix(known.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        })
    };
    let from_one = one.iter().filter(|path| is_inside(path, other));
    let from_other = other
        .iter()
        .filter(|path| is_inside(path, one) && !one.contains(path));
    let mut both: Vec<String> = from_one.chain(from_other).cloned().collect();
    both.sort();
    both
}

/// Returns whether the list has a key by its path or name, for this model type or for all, and with this value or with any.
fn is_harmless(model_type: &str, path: &str, value: &Value) -> bool {
    let key = path.rsplit('.').next().unwrap_or(path);
    lines().any(|line| {
        let (line_type, line) = line.split_once('/').unwrap_or(("*", line));
        let (pattern, expected) = match line.split_once('=') {
            Some((pattern, expected)) => (pattern, Some(expected)),
            None => (line, None),
        };
        let is_expected = expected
            .and_then(|expected| expected.parse::<Value>().ok())
            .is_none_or(|expected| expected == *value);
        let is_named = matches(pattern, key) || matches(pattern, path);
        is_expected && matches(line_type, model_type) && is_named
    })
}

/// Returns the lines of the list that name keys.
fn lines() -> impl Iterator<Item = &'static str> {
    let lines = include_str!("harmless.txt").lines();
    lines.filter(|line| !line.is_empty() && !line.starts_with(['#', '=']))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use serde_json::{Map, json};

    use super::*;
    use crate::checkpoint::families;
    use crate::checkpoint::plan::outside_blocks::described;

    #[test]
    fn unlisted_keys_are_named_by_their_paths() {
        let contents = json!({
            "hidden_size": 3, "use_cache": true, "attention_dropout": 0.1, "own_key": 1,
            "text_config": {"initializer_range": 0.02, "n_own": 2}, "eos_token_id": 2
        });
        let json = ConfigJson::given(Path::new("config.json"), contents);
        json.size(&["hidden_size"]).unwrap();
        let text = json.section(&["text_config"]).unwrap().unwrap();
        text.size(&["vocab_size"]).unwrap_err();
        assert_eq!(unknown(&json), ["own_key", "text_config.n_own"]);
    }

    #[test]
    fn two_readers_know_no_key_that_both_leave() {
        let paths = |all: &[&str]| all.iter().map(|path| path.to_string()).collect::<Vec<_>>();
        let (one, other) = (
            paths(&["a", "b.c", "text"]),
            paths(&["a", "b", "text.x", "d"]),
        );
        assert_eq!(of_both(&one, &other), ["a", "b.c", "text.x"]);
    }

    #[test]
    fn no_pattern_is_listed_twice() {
        let mut seen = BTreeSet::new();
        for line in lines() {
            assert!(seen.insert(line), "{line}");
        }
    }

    /// Returns how many of these files a family reads, by model type, and which have unknown keys.
    fn read(files: impl IntoIterator<Item = (String, String, Value)>) -> (usize, Vec<String>) {
        let (mut n_read, mut found) = (0, Vec::new());
        for (name, model_type, value) in files {
            for family in families::all() {
                if !family.model_types.contains(&model_type) {
                    continue;
                }
                let json = ConfigJson::given(Path::new("config.json"), value.clone());
                let Ok(stack) = family.stack_config(&json) else {
                    continue;
                };
                if described(family, &json, &stack, true).is_err() {
                    continue;
                }
                n_read += 1;
                let unknown = unknown(&json);
                if !unknown.is_empty() {
                    found.push(format!("{name}: {}", unknown.join(", ")));
                }
            }
        }
        (n_read, found)
    }

    fn files(name: &str) -> Map<String, Value> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/weights/").to_string() + name;
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    /// The default configuration of each transformers model type, and of each of its stacks.
    #[test]
    fn ordinary_files_have_no_unknown_keys() {
        let all = files("default_configs.json").into_iter();
        let (n_read, found) = read(all.map(|(name, value)| (name.clone(), name, value)));
        assert!(n_read > 150, "only {n_read}");
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn published_files_of_code_on_the_hub_have_no_unknown_keys() {
        let all = files("hub_configs.json");
        let n_files = all.len();
        let (n_read, found) = read(all.into_iter().map(|(name, value)| {
            let json = ConfigJson::given(Path::new("config.json"), value.clone());
            let code_type = families::type_of_code(&json).unwrap().map(Value::from);
            let model_type = code_type.unwrap_or(value["model_type"].clone());
            (name, model_type.as_str().unwrap().to_string(), value)
        }));
        assert!(found.is_empty(), "{}", found.join("\n"));
        assert_eq!(n_read, n_files);
    }
}
