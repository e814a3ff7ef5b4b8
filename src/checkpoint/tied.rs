//! Parameters that several roles share, such as a table of words that two stacks read.

use std::collections::HashMap;

use crate::checkpoint::plan::Plan;
use crate::checkpoint::source::Source;

/// Of the places of parameters, all but those of a role before; which notes whose parameter it is in `tied`.
pub(super) fn unite(all: Vec<Source>, tied: &mut HashMap<String, String>) -> Vec<Source> {
    let mut first: HashMap<(String, Vec<usize>), String> = HashMap::new();
    let mut united = Vec::new();
    for source in all {
        let key = (source.name.clone(), source.shape.clone());
        let is_part = source.features.is_some() || source.item.is_some();
        match first.get(&key).filter(|_| !is_part) {
            Some(first) => {
                tied.insert(source.role, first.clone());
            }
            None => {
                first.insert(key, source.role.clone());
                united.push(source);
            }
        }
    }
    united
}

impl Plan {
    /// Makes roles around the blocks that share a tensor (tied weights) one parameter, the first, and notes where each is.
    pub(super) fn unite_tied(&mut self) {
        let Self { sources, tied, .. } = self;
        let of_ends = sources.split_off(self.n_of_blocks);
        sources.extend(unite(of_ends, tied));
        let places = sources.iter().enumerate();
        self.places = places.map(|(i, s)| (s.role.clone(), i)).collect();
    }

    /// The source of a role, which has the name of another one where they share a parameter.
    pub fn source(&self, role: &str) -> Option<&Source> {
        let mut role = role;
        while let Some(first) = self.tied.get(role) {
            role = first;
        }
        self.places.get(role).map(|&place| &self.sources[place])
    }

    /// Whether other roles share the parameter of this one.
    pub fn is_shared(&self, role: &str) -> bool {
        self.tied.values().any(|first| first == role)
    }
}
