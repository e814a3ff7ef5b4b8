//! Values by role, in insertion order.

use std::{collections::HashMap, ops::Deref};

use candle_core::Var;

/// Variables with their roles (`blocks.0.attention.query.weight`), in the order in which they were loaded or created.
pub type Parameters = ByRole<Var>;

/// Pairs of a role and a value, in insertion order. Dereferences to a slice, and finds a role without a search.
#[derive(Clone, Debug)]
pub struct ByRole<T> {
    pairs: Vec<(String, T)>,
    places: HashMap<String, usize>,
}

impl<T> ByRole<T> {
    /// Appends a pair.
    pub fn push(&mut self, role: String, value: T) {
        self.places.entry(role.clone()).or_insert(self.pairs.len());
        self.pairs.push((role, value));
    }

    /// Returns the value for a role: the first one, if the role was added several times.
    pub fn find(&self, role: &str) -> Option<&T> {
        self.place(role).map(|place| &self.pairs[place].1)
    }

    /// Returns the index of a role.
    pub fn place(&self, role: &str) -> Option<usize> {
        self.places.get(role).copied()
    }

    pub(crate) fn find_mut(&mut self, role: &str) -> Option<&mut T> {
        self.place(role).map(|place| &mut self.pairs[place].1)
    }
}

impl<T> Default for ByRole<T> {
    fn default() -> Self {
        Self {
            pairs: Vec::new(),
            places: HashMap::new(),
        }
    }
}

impl<T> Deref for ByRole<T> {
    type Target = [(String, T)];

    fn deref(&self) -> &Self::Target {
        &self.pairs
    }
}

impl<T> Extend<(String, T)> for ByRole<T> {
    fn extend<I: IntoIterator<Item = (String, T)>>(&mut self, pairs: I) {
        for (role, value) in pairs {
            self.push(role, value);
        }
    }
}

impl<T> FromIterator<(String, T)> for ByRole<T> {
    fn from_iter<I: IntoIterator<Item = (String, T)>>(pairs: I) -> Self {
        let mut all = Self::default();
        all.extend(pairs);
        all
    }
}

impl<T> From<Vec<(String, T)>> for ByRole<T> {
    fn from(pairs: Vec<(String, T)>) -> Self {
        pairs.into_iter().collect()
    }
}

impl<T> IntoIterator for ByRole<T> {
    type Item = (String, T);
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.pairs.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a ByRole<T> {
    type Item = &'a (String, T);
    type IntoIter = std::slice::Iter<'a, (String, T)>;

    fn into_iter(self) -> Self::IntoIter {
        self.pairs.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_keep_their_order_and_the_first_of_a_role_is_found() {
        let pairs = [("b", 1), ("a", 2), ("b", 3)].map(|(role, value)| (role.to_string(), value));
        let mut all: ByRole<i32> = pairs.to_vec().into();
        all.push("c".to_string(), 4);
        let values: Vec<i32> = all.iter().map(|(_, value)| *value).collect();
        assert_eq!(values, [1, 2, 3, 4]);
        assert_eq!((all.find("b"), all.find("d")), (Some(&1), None));
        assert_eq!((all.place("a"), all.place("c")), (Some(1), Some(3)));
        *all.find_mut("a").unwrap() = 5;
        assert_eq!(all[1], ("a".to_string(), 5));
    }
}
