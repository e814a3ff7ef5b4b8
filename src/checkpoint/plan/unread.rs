//! Tensors outside the blocks that no part of a whole model reads.
//!
//! A family's patterns say that a tensor is outside the blocks, not that something reads it. A tensor stays unmentioned only if
//! it belongs to a part that is not loaded: a pooler or a head with rules of its own, or a module that no rule knows.

use std::cell::OnceCell;
use std::collections::HashSet;

use crate::checkpoint::scheme::{Family, Rule, matches};
use crate::config::ModelConfig;

/// A whole model's parts, and the tensors that they and the blocks read.
pub(crate) struct Readers<'p> {
    family: &'p Family,
    prefix: &'p str,
    /// The names of the pooler and of heads that are not loaded, as patterns.
    of_others: Vec<String>,
    read: [&'p HashSet<String>; 2],
    /// Patterns for modules that no rule knows, such as a head that the family does not define.
    unknown: OnceCell<Vec<&'p String>>,
}

impl<'p> Readers<'p> {
    /// For a model, and the names of the tensors that its blocks and its other parts read.
    pub fn new(
        family: &'p Family,
        prefix: &'p str,
        model: &ModelConfig,
        read: [&'p HashSet<String>; 2],
    ) -> Self {
        let pooler = model.pooler.as_ref().map(|_| "pooler".to_string());
        let head = model.head.as_ref().map(|head| head.task.to_string());
        let parts = [Some("embeddings".to_string()), pooler, head];
        let is_loaded = |rule: &&Rule| {
            let part = rule.role.split('.').next();
            parts
                .iter()
                .flatten()
                .any(|loaded| Some(loaded.as_str()) == part)
        };
        let others = family.end_rules.iter().filter(|rule| !is_loaded(rule));
        let names = others.flat_map(|rule| rule.weight.iter().chain(&rule.bias));
        Self {
            family,
            prefix,
            of_others: names.map(|name| name.replace("{e}", "*")).collect(),
            read,
            unknown: OnceCell::new(),
        }
    }

    /// Returns whether a tensor outside the blocks belongs to a part that is not loaded.
    pub fn is_elsewhere(&self, name: &str) -> bool {
        let mut of_others = self.of_others.iter();
        if of_others.any(|other| self.matches(other, name)) {
            return true;
        }
        let unknown = self.unknown.get_or_init(|| self.unknown());
        unknown.iter().any(|pattern| self.matches(pattern, name))
    }

    fn unknown(&self) -> Vec<&'p String> {
        let is_known = |pattern: &&String| {
            let mut read = self.read.iter().flat_map(|names| names.iter());
            let mut of_others = self.of_others.iter();
            read.any(|name| self.matches(pattern, name))
                || of_others.any(|other| matches(pattern, other))
        };
        let patterns = self.family.outside.iter();
        patterns.filter(|pattern| !is_known(pattern)).collect()
    }

    fn matches(&self, pattern: &str, name: &str) -> bool {
        let local = name.strip_prefix(self.prefix).unwrap_or(name);
        matches(pattern, local) || matches(pattern, name)
    }
}
