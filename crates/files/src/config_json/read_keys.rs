//! Records which keys of a JSON file were read.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

/// A file's contents and the paths of the keys that were read. A path has dots between its keys: `text_config.hidden_size`.
#[derive(Debug)]
pub(super) struct ReadKeys {
    contents: Value,
    read: Mutex<BTreeSet<String>>,
}

impl ReadKeys {
    pub fn new(contents: Value) -> Self {
        Self {
            contents,
            read: Mutex::default(),
        }
    }

    /// Records that the value at `path` was read, with everything inside it.
    pub fn record(&self, path: String) {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        read.insert(path);
    }

    /// Returns the paths below `section` whose values were not read. If no key in an object was read, only the object's own
    /// path is listed. Null values do not count.
    pub fn unread(&self, section: Option<&str>) -> Vec<String> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let top = match section {
            None => Some(&self.contents),
            Some(section) => section
                .split('.')
                .try_fold(&self.contents, |value, key| value.get(key)),
        };
        let mut unread = Vec::new();
        for (key, value) in top.and_then(Value::as_object).into_iter().flatten() {
            collect(&joined(section, key), value, &read, &mut unread);
        }
        unread
    }

    /// Returns the paths that were read whose values are 0.
    pub fn zeros(&self) -> Vec<String> {
        let read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let value = |path: &str| {
            let mut keys = path.split('.');
            keys.try_fold(&self.contents, |value, key| value.get(key))
        };
        let is_zero = |path: &&String| value(path).and_then(Value::as_u64) == Some(0);
        read.iter().filter(is_zero).cloned().collect()
    }
}

/// Returns the path of `key` in the object at `section`.
pub(super) fn joined(section: Option<&str>, key: &str) -> String {
    match section {
        Some(section) => format!("{section}.{key}"),
        None => key.to_string(),
    }
}

fn collect(path: &str, value: &Value, read: &BTreeSet<String>, unread: &mut Vec<String>) {
    if value.is_null() || read.contains(path) {
        return;
    }
    let inside = format!("{path}.");
    let is_entered = read
        .range(inside.clone()..)
        .next()
        .is_some_and(|next| next.starts_with(&inside));
    match value.as_object() {
        Some(object) if is_entered => {
            for (key, value) in object {
                collect(&format!("{inside}{key}"), value, read, unread);
            }
        }
        _ => unread.push(path.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unread_keys_are_listed_by_their_paths() {
        let contents = serde_json::json!({
            "read": 1, "forgotten": 2, "empty": null,
            "entered": {"read": {"all": 1}, "forgotten": [3]},
            "untouched": {"a": 1, "b": 2}
        });
        let keys = ReadKeys::new(contents);
        keys.record("read".into());
        keys.record("entered.read".into());
        keys.record("absent".into());
        assert_eq!(
            keys.unread(None),
            ["entered.forgotten", "forgotten", "untouched"]
        );
        assert_eq!(keys.unread(Some("entered")), ["entered.forgotten"]);
        assert_eq!(
            keys.unread(Some("untouched")),
            ["untouched.a", "untouched.b"]
        );
        assert!(keys.unread(Some("absent")).is_empty());
    }
}
