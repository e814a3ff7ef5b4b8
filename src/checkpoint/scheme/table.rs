//! Reads the crate's own tables: lists of JSON objects, in which lines that begin with `//` are comments. An entry has a `name`, may
//! have the keys that it lacks from the entry in `like`, and has the `model_type` that it reads as in `read_as`. A user's own family is
//! one such object in a file: see [`Family::from_json_file`](crate::checkpoint::scheme::Family::from_json_file).

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};

use crate::checkpoint::config_json::blank_comments;

/// An entry that may take keys from an earlier one.
pub(crate) trait Table: Clone + Deserialize<'static> {
    /// Returns the entry's own name, and the name of the entry from which it takes keys.
    fn names(&self) -> (&'static str, Option<&'static str>);

    /// Adds what only the other entry says.
    fn add(&mut self, base: &Self);
}

/// Reads the entries in these texts, each of which may be like any earlier one.
///
/// # Errors
/// If a text is malformed, or an entry is like one that no earlier text has. The reason has the line.
pub(crate) fn tables<T: Table>(texts: &[&str]) -> Result<Vec<T>, String> {
    let mut all: Vec<T> = vec![];
    for text in texts {
        let mut text = text.as_bytes().to_vec();
        blank_comments(&mut text);
        // The entries, which are read once, borrow their names.
        let entries: Vec<T> =
            serde_json::from_slice(text.leak()).map_err(|error| error.to_string())?;
        for mut entry in entries {
            if let (name, Some(like)) = entry.names() {
                let mut earlier = all.iter().rev();
                let base = earlier.find(|base| base.names().0 == like);
                entry.add(base.ok_or_else(|| format!("{name} is like {like}, which is no entry"))?);
            }
            all.push(entry);
        }
    }
    Ok(all)
}

/// An object's keys and values, in the order of the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entries<K, V>(Vec<(K, V)>);

impl<K: Copy + PartialEq, V: Clone> Entries<K, V> {
    /// Adds the entries of `base` before these, without those whose key `leave` selects or these have.
    pub(crate) fn add(&mut self, base: &Self, leave: impl Fn(K) -> bool) {
        let own = |key: K| self.0.iter().any(|(known, _)| *known == key);
        let added = base.0.iter().filter(|(key, _)| !own(*key) && !leave(*key));
        let mut all: Vec<_> = added.cloned().collect();
        all.append(&mut self.0);
        self.0 = all;
    }
}

impl<K, V> Entries<K, V> {
    /// Returns the value under a key.
    pub(crate) fn get<Q>(&self, key: Q) -> Option<&V>
    where
        K: PartialEq<Q>,
    {
        let mut all = self.0.iter();
        all.find_map(|(known, value)| (*known == key).then_some(value))
    }
}

impl<K, V> Default for Entries<K, V> {
    fn default() -> Self {
        Self(vec![])
    }
}

impl<K, V> Deref for Entries<K, V> {
    type Target = [(K, V)];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for Entries<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object<K, V>(PhantomData<(K, V)>);

        impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Visitor<'de> for Object<K, V> {
            type Value = Entries<K, V>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = vec![];
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(Entries(all))
            }
        }

        deserializer.deserialize_map(Object(PhantomData))
    }
}
