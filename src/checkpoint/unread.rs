//! Tensors outside the blocks that no part of a whole model reads.
//!
//! A family's patterns say that a tensor is outside the blocks, not that something reads it. A tensor stays unmentioned only if
//! it belongs to a part that is not loaded: a pooler or a head with rules of its own, or a module of which nothing is read.

use std::collections::HashSet;

use crate::checkpoint::scheme::{Family, Rule, matches};
use crate::config::ModelConfig;

/// The parts of a whole model, and the tensors that they and the blocks read.
pub(super) struct Readers<'p> {
    family: &'p Family,
    prefix: &'p str,
    /// The first word in the roles of each loaded part.
    parts: Vec<String>,
    read: [&'p HashSet<String>; 2],
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
        Self {
            family,
            prefix,
            parts: parts.into_iter().flatten().collect(),
            read,
        }
    }

    /// Returns whether a tensor outside the blocks belongs to a part that is not loaded.
    pub fn is_elsewhere(&self, name: &str) -> bool {
        let is_of_rule = |rule: &Rule| {
            let mut names = rule.weight.iter().chain(&rule.bias);
            names.any(|own| self.matches(&own.replace("{e}", "*"), name))
        };
        let is_loaded = |rule: &Rule| {
            let part = rule.role.split('.').next().unwrap_or_default();
            self.parts.iter().any(|loaded| loaded == part)
        };
        let mut rules = self.family.end_rules.iter();
        if rules.any(|rule| !is_loaded(rule) && is_of_rule(rule)) {
            return true;
        }
        // A module of which the model reads nothing is another part, such as a head that the family does not know.
        let is_read = |pattern: &String| {
            let mut read = self.read.iter().flat_map(|names| names.iter());
            read.any(|name| self.matches(pattern, name))
        };
        let mut patterns = self.family.outside.iter();
        patterns.any(|pattern| self.matches(pattern, name) && !is_read(pattern))
    }

    fn matches(&self, pattern: &str, name: &str) -> bool {
        let local = name.strip_prefix(self.prefix).unwrap_or(name);
        matches(pattern, local) || matches(pattern, name)
    }
}
