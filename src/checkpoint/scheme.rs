//! A checkpoint family as data: which tensor on disk plays which role, and how it lies there.
//!
//! A [`Family`] is a table of rules. Each rule ties a role in this crate's naming
//! (`attention.query`) to names on disk, with an orientation and, where several roles share one
//! tensor, the part of it. Weight and bias of a role share one rule, so they cannot be permuted
//! differently; a rule can be read backwards, so gradients and saved weights find their way home.

mod part;
mod rule;

use std::fmt;

use serde::Deserialize;

use crate::{
    Result,
    checkpoint::{config_json::ConfigJson, fresh},
    config::{Initialisation, StackConfig},
};

pub(crate) use self::part::Features;
pub use self::{
    part::{FusedLayout, Half, Part, Projection},
    rule::{Orientation, Rule, Stacking},
};
pub(crate) use crate::config::matches;

/// Owned copies, for a table's lists.
pub(crate) fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| item.to_string()).collect()
}

/// Which stack of a checkpoint that holds several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StackPart {
    /// The encoder of an encoder-decoder.
    Encoder,
    /// The decoder of an encoder-decoder.
    Decoder,
    /// The text tower of a two-tower model.
    Text,
    /// The vision tower of a two-tower model.
    Vision,
}

impl fmt::Display for StackPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Encoder => "encoder",
            Self::Decoder => "decoder",
            Self::Text => "text",
            Self::Vision => "vision",
        })
    }
}

/// Where the configuration of a family's blocks comes from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StackSource {
    /// It is read from `config.json`.
    Json(fn(&ConfigJson) -> Result<StackConfig>),
    /// It is given.
    Given(Box<StackConfig>),
}

/// A checkpoint family: a table of rules and the reading of its `config.json`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Family {
    /// Its name.
    pub name: String,
    /// Values of `model_type` that mean this family.
    pub model_types: Vec<String>,
    /// Which stack it describes, if the checkpoint holds several.
    pub part: Option<StackPart>,
    /// What may stand before every name, tried in order: headless files drop it.
    pub prefixes: Vec<String>,
    /// What stands before the names of block `{i}`.
    pub block: String,
    /// Rules inside a block.
    pub block_rules: Vec<Rule>,
    /// Rules outside the blocks.
    pub stack_rules: Vec<Rule>,
    /// Tensors that are no parameters and are left out: patterns with `*`.
    pub ignored: Vec<String>,
    /// Parameters of parts that are no blocks (embeddings, heads): patterns with `*`.
    pub outside: Vec<String>,
    /// Where the configuration of its blocks comes from.
    pub config: StackSource,
    /// Reads from `config.json` how fresh parameters are drawn.
    pub initialisation: fn(&ConfigJson) -> Result<Initialisation>,
    /// Reads from `config.json` which names a new checkpoint has where a role has several: patterns with `*`.
    pub new_names: fn(&ConfigJson) -> Result<&'static [&'static str]>,
}

impl Family {
    /// An empty table whose configuration `config` reads.
    pub fn new(
        name: &str,
        model_types: &[&str],
        config: fn(&ConfigJson) -> Result<StackConfig>,
    ) -> Self {
        Self::with_config(name, model_types, StackSource::Json(config))
    }

    /// An empty table for blocks of the given configuration.
    pub fn given(name: &str, config: StackConfig) -> Self {
        Self::with_config(name, &[], StackSource::Given(Box::new(config)))
    }

    fn with_config(name: &str, model_types: &[&str], config: StackSource) -> Self {
        Self {
            name: name.to_string(),
            model_types: strings(model_types),
            part: None,
            prefixes: vec![],
            block: String::new(),
            block_rules: vec![],
            stack_rules: vec![],
            ignored: vec![],
            outside: vec![],
            config,
            initialisation: fresh::normal,
            new_names: |_| Ok(&[]),
        }
    }

    /// Of one stack of a checkpoint that holds several.
    pub fn part(mut self, part: StackPart) -> Self {
        self.part = Some(part);
        self
    }

    /// With what may stand before every name, in the order in which it is tried.
    pub fn prefixes(mut self, prefixes: &[&str]) -> Self {
        self.prefixes = strings(prefixes);
        self
    }

    /// With blocks whose names start with `block`, in which `{i}` is their number.
    pub fn blocks(mut self, block: &str, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.block = block.to_string();
        self.block_rules.extend(rules);
        self
    }

    /// With more rules inside a block; of several for one role, the first whose tensor is there counts.
    pub fn block_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.block_rules.extend(rules);
        self
    }

    /// With rules outside the blocks.
    pub fn stack_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.stack_rules.extend(rules);
        self
    }

    /// Leaving out tensors that are no parameters: patterns with `*`.
    pub fn ignored(mut self, patterns: &[&str]) -> Self {
        self.ignored.extend(strings(patterns));
        self
    }

    /// With parameters of parts that are no blocks: patterns with `*`.
    pub fn outside(mut self, patterns: &[&str]) -> Self {
        self.outside.extend(strings(patterns));
        self
    }

    /// With fresh parameters drawn as `read` finds in `config.json`, instead of from one normal distribution.
    pub fn initialisation(mut self, read: fn(&ConfigJson) -> Result<Initialisation>) -> Self {
        self.initialisation = read;
        self
    }

    /// With the names that `read` finds in `config.json` for new checkpoints, instead of the first of each role.
    pub fn new_names(mut self, read: fn(&ConfigJson) -> Result<&'static [&'static str]>) -> Self {
        self.new_names = read;
        self
    }

    /// The rules for a role inside a block, or outside the blocks, and the number in the role.
    pub(crate) fn rules(&self, role: &str, in_block: bool) -> (Vec<&Rule>, Option<usize>) {
        let rules = if in_block {
            &self.block_rules
        } else {
            &self.stack_rules
        };
        let number = role.split('.').find_map(|segment| segment.parse().ok());
        let pattern = |segment| match number {
            Some(_) if str::parse::<usize>(segment).is_ok() => "{e}",
            _ => segment,
        };
        let pattern: Vec<&str> = role.split('.').map(pattern).collect();
        let pattern = pattern.join(".");
        (
            rules.iter().filter(|rule| rule.role == pattern).collect(),
            number,
        )
    }
}
