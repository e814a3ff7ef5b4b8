//! A checkpoint family as data: which tensor on disk has which role, and how it is stored.
//!
//! A [`Family`] is a table of rules. Each rule maps a role (`attention.query`) to names on disk, with an
//! orientation and, where several roles share a tensor, the part of it. The weight and bias of a role share
//! one rule, so they cannot be permuted differently. Rules also work in reverse, for gradients and saved
//! weights.
//!
//! Most families differ little from another: [`Family::known`] starts from a built-in one, and in a JSON file `"like"`
//! does ([`Family::from_json_file`]).
#![doc = include_str!("scheme/roles.md")]
#![doc = include_str!("scheme/end_roles.md")]

mod difference;
mod part;
mod rule;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::initializer_range;
use crate::checkpoint::masking::masked;
use crate::config::{
    EmbeddingsConfig, Initialization, Joint, ReadoutConfig, StackConfig, Task, setters,
};
use crate::error::Result;

use self::difference::changed;
pub(crate) use self::part::Features;
pub use self::{
    difference::{BlockChange, ConfigKeys},
    part::{FusedLayout, Half, Part, Projection},
    rule::{Orientation, Rule, Stacking},
};
pub(crate) use crate::config::matches;

fn replace(all: &mut Vec<Rule>, rules: impl IntoIterator<Item = Rule>) {
    let rules: Vec<Rule> = rules.into_iter().collect();
    all.retain(|old| rules.iter().all(|new| new.role != old.role));
    all.extend(rules);
}

/// Owned copies, for a table's lists.
pub(crate) fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| item.to_string()).collect()
}

/// One of the stacks of a checkpoint that contains several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum StackPart {
    /// The encoder of an encoder-decoder model.
    Encoder,
    /// The decoder of an encoder-decoder model.
    Decoder,
    /// The text tower of a two-tower model.
    Text,
    /// The vision tower of a two-tower model.
    Vision,
}

impl fmt::Display for StackPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Where the configuration of a family's blocks comes from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StackSource {
    /// Read from `config.json` by a function.
    Json(fn(&ConfigJson) -> Result<StackConfig>),
    /// Given as it is.
    Given(Box<StackConfig>),
}

/// Reads from `config.json` what makes the hidden states of a stack.
pub type ReadEmbeddings = fn(&ConfigJson, &StackConfig) -> Result<EmbeddingsConfig>;

/// Reads from `config.json` a pooler or head of a stack.
pub type ReadReadout = fn(&ConfigJson, &StackConfig) -> Result<ReadoutConfig>;

/// Reads from `config.json` how a stack and the other one of its checkpoint make one model.
pub type ReadJoint = fn(&ConfigJson) -> Result<Joint>;

/// A checkpoint family: a table of rules, and a function that reads its `config.json`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Family {
    /// Its name.
    pub name: String,
    /// The values of `model_type` that name this family.
    pub model_types: Vec<String>,
    /// The stack that it describes, if checkpoints contain several.
    pub part: Option<StackPart>,
    /// The possible prefixes of every name, tried in order (checkpoints without a head often have none).
    pub prefixes: Vec<String>,
    /// The prefix of the names of block `{i}`. Of blocks in groups, `{i/n}` is the group and `{i%n}` the place in it, of `n` blocks
    /// for each; a key of config.json may stand for `n`, which is 1 where the key is absent.
    pub block: String,
    /// Rules for parameters inside a block.
    pub block_rules: Vec<Rule>,
    /// Rules for parameters of the stack outside its blocks, such as the final norm.
    pub stack_rules: Vec<Rule>,
    /// Rules for what surrounds the stack: embeddings, pooler and head. Their names are tried behind the prefix and without.
    pub end_rules: Vec<Rule>,
    /// Tensors that are not parameters and are left out: patterns with `*`.
    pub ignored: Vec<String>,
    /// Parameters outside the stack (embeddings, heads): patterns with `*`.
    pub outside: Vec<String>,
    /// Roles that are not trained, since PyTorch has a buffer there: patterns with `*`.
    pub untrained: Vec<String>,
    /// Where the configuration of its blocks comes from.
    pub config: StackSource,
    /// How its `config.json` differs from the one that is read.
    pub keys: ConfigKeys,
    /// What is different in the blocks that were read.
    pub changes: Vec<BlockChange>,
    /// What is different in the stack that was read, as in [`BlockChange::set`]; `null` for nothing.
    pub set: Value,
    /// Reads from `config.json` what makes the hidden states; `None` if that is not known.
    pub embeddings: Option<ReadEmbeddings>,
    /// Reads the pooler, where checkpoints may have one.
    pub pooler: Option<ReadReadout>,
    /// Reads each head that checkpoints may have, by what it is for.
    pub heads: Vec<(Task, ReadReadout)>,
    /// The other stack of a whole model and how the two are joined, in the family of the decoder or the text tower.
    pub joined: Option<(StackPart, ReadJoint)>,
    /// Reads the distribution of fresh parameters from `config.json`.
    pub initialization: fn(&ConfigJson) -> Result<Initialization>,
    /// Reads from `config.json` which names a new checkpoint uses where a role has several, and around the blocks also which
    /// count where files hold several: patterns with `*`.
    pub new_names: fn(&ConfigJson) -> Result<&'static [&'static str]>,
}

impl Family {
    /// An empty table whose block configuration the function `config` reads.
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

    pub(super) fn with_config(name: &str, model_types: &[&str], config: StackSource) -> Self {
        Self {
            name: name.to_string(),
            model_types: strings(model_types),
            part: None,
            prefixes: vec![],
            block: String::new(),
            block_rules: vec![],
            stack_rules: vec![],
            end_rules: vec![],
            ignored: vec![],
            outside: vec![],
            untrained: vec![],
            config,
            keys: ConfigKeys::default(),
            changes: vec![],
            set: Value::Null,
            embeddings: None,
            pooler: None,
            heads: vec![],
            joined: None,
            initialization: initializer_range::normal,
            new_names: |_| Ok(&[]),
        }
    }

    /// Sets its name, which is also the `model_type` that names it.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_string();
        self.model_types = strings(&[name]);
        self
    }

    setters! {
        /// Sets which stack of a checkpoint it describes.
        part(part: StackPart) => part = Some(part);
        /// Sets the possible prefixes of every name, in the order in which they are tried.
        prefixes(prefixes: &[&str]) => prefixes = strings(prefixes);
        /// Sets what the names of a block start with, in which `{i}` stands for its number.
        block(block: &str) => block = block.to_string();
        /// Sets the function that reads the configuration of the blocks. It may start from another family's
        /// [`Self::stack_config`].
        read_by(config: fn(&ConfigJson) -> Result<StackConfig>) => config = StackSource::Json(config);
        /// Reads the configuration from this object inside `config.json`, such as `text_config`.
        section(section: &str) => keys.section = Some(section.to_string());
        /// Changes settings of the stack after it was read, as [`BlockChange::set`] those of a block.
        set(set: Value) => set = set;
        /// Sets the function that reads what makes the hidden states.
        embeddings(read: ReadEmbeddings) => embeddings = Some(read);
        /// Sets the function that reads the pooler.
        pooler(read: ReadReadout) => pooler = Some(read);
        /// Sets the function that reads the distribution of fresh parameters, instead of a single normal distribution.
        initialization(read: fn(&ConfigJson) -> Result<Initialization>) => initialization = read;
        /// Sets the function that reads the names for new checkpoints, instead of the first name of each role.
        new_names(read: fn(&ConfigJson) -> Result<&'static [&'static str]>) => new_names = read;
    }

    /// As [`Self::section`], for files of which some have the keys of that object outside, and no such object.
    pub fn section_or_whole(mut self, section: &str) -> Self {
        self.keys.or_whole = true;
        self.section(section)
    }

    /// Reads `key` outside the section too; see [`ConfigKeys::handed_on`].
    pub fn handed_on(mut self, key: &str) -> Self {
        self.keys.handed_on.push(key.to_string());
        self
    }

    /// Adds rules for parameters inside a block; of several for one role, the first whose tensor exists counts.
    pub fn block_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.block_rules.extend(rules);
        self
    }

    /// Adds rules for parameters inside a block in the place of all others for the same roles.
    pub fn replace_block_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        replace(&mut self.block_rules, rules);
        self
    }

    /// Adds rules for parameters outside the blocks in the place of all others for the same roles.
    pub fn replace_stack_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        replace(&mut self.stack_rules, rules);
        self
    }

    /// Adds rules for parameters outside the blocks.
    pub fn stack_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.stack_rules.extend(rules);
        self
    }

    /// Adds rules for what surrounds the stack.
    pub fn end_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.end_rules.extend(rules);
        self
    }

    /// Adds a head that checkpoints may have, in the place of an earlier one for the same task. Where `config.json` names no
    /// class, the first that the files hold is taken.
    pub fn head(mut self, task: Task, read: ReadReadout) -> Self {
        match self.heads.iter_mut().find(|(known, _)| *known == task) {
            Some((_, known)) => *known = read,
            None => self.heads.push((task, read)),
        }
        self
    }

    /// Whether checkpoints may have a head for this task.
    pub(super) fn has_head(&self, task: Task) -> bool {
        self.heads.iter().any(|(known, _)| *known == task)
    }

    /// Sets the other stack of a whole model, and how the two are joined.
    pub fn joined(mut self, with: StackPart, read: ReadJoint) -> Self {
        self.joined = Some((with, read));
        self
    }

    /// Adds tensors that are not parameters and are left out: patterns with `*`.
    pub fn ignored(mut self, patterns: &[&str]) -> Self {
        self.ignored.extend(strings(patterns));
        self
    }

    /// Adds parameters outside the stack: patterns with `*`.
    pub fn outside(mut self, patterns: &[&str]) -> Self {
        self.outside.extend(strings(patterns));
        self
    }

    /// Adds roles that are not trained, since PyTorch has a buffer there: patterns with `*`.
    pub fn untrained(mut self, patterns: &[&str]) -> Self {
        self.untrained.extend(strings(patterns));
        self
    }

    /// Reads `key` under the name that it has in `config.json`; see [`ConfigKeys::renamed`].
    pub fn renamed(mut self, key: &str, in_file: &str) -> Self {
        self.keys
            .renamed
            .insert(key.to_string(), in_file.to_string());
        self
    }

    /// Sets the value of a key that `config.json` may leave out.
    pub fn default_of(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.keys.defaults.insert(key.to_string(), value.into());
        self
    }

    /// Changes blocks after they were read.
    pub fn change(mut self, change: BlockChange) -> Self {
        self.changes.push(change);
        self
    }

    /// The configuration of the blocks that a `config.json` describes.
    ///
    /// # Errors
    /// If a key is missing, malformed or not supported.
    pub fn stack_config(&self, json: &ConfigJson) -> Result<StackConfig> {
        let json = &self.keys.seen(json)?;
        json.flag(&["tie_word_embeddings"], true)?; // also where no head asks for it
        let mut stack = match &self.config {
            StackSource::Json(read) => match self.part {
                // Each of two towers has keys of its own.
                Some(StackPart::Text | StackPart::Vision) => read(json)?,
                _ => masked(json, read(json)?)?,
            },
            StackSource::Given(config) => (**config).clone(),
        };
        for change in &self.changes {
            change.apply(json, &mut stack)?;
        }
        match &self.set {
            Value::Null => Ok(stack),
            set => changed(&stack, set, json),
        }
    }

    /// The table with the numbers of `json` in the prefix of its blocks.
    ///
    /// # Errors
    /// If what is under a key there is no size.
    pub(super) fn with_group_sizes(mut self, json: &ConfigJson) -> Result<Self> {
        for mark in ["{i/", "{i%"] {
            if let Some((before, rest)) = self.block.split_once(mark)
                && let Some((key, after)) = rest.split_once('}')
                && key.parse::<usize>().is_err()
            {
                let n = json.size_or(&[key], 1)?;
                self.block = format!("{before}{mark}{n}}}{after}");
            }
        }
        Ok(self)
    }

    /// The prefix of the names of a block.
    pub(super) fn block_prefix(&self, index: usize) -> String {
        let mut prefix = self.block.replace("{i}", &index.to_string());
        let group: fn(usize, usize) -> usize = |i, n| i / n;
        for (mark, number) in [("{i/", group), ("{i%", |i, n| i % n)] {
            if let Some((before, rest)) = prefix.split_once(mark)
                && let Some((n, after)) = rest.split_once('}')
            {
                let n = n.parse().unwrap_or(1).max(1);
                prefix = format!("{before}{}{after}", number(index, n));
            }
        }
        prefix
    }

    /// Where a role of a whole model is: in a block, or in the stack if one of its rules is for the role, else in what surrounds it.
    pub(super) fn place(&self, role: &str) -> Place {
        let module = role.rsplit_once('.').map_or(role, |(module, _)| module);
        match Place::of(role) {
            Place::Stack if self.rules(module, Place::Stack).0.is_empty() => Place::Ends,
            place => place,
        }
    }

    /// The rules for a role at a place of the model, and the number in the role.
    pub(super) fn rules(&self, role: &str, place: Place) -> (Vec<&Rule>, Option<usize>) {
        let rules = match place {
            Place::Block(_) => &self.block_rules,
            Place::Stack => &self.stack_rules,
            Place::Ends => &self.end_rules,
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

/// Where in a model a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the block of this number.
    Block(usize),
    /// In the stack, outside its blocks.
    Stack,
    /// In what surrounds the stack.
    Ends,
}

impl Place {
    /// Of a role of the stack.
    pub fn of(role: &str) -> Self {
        let index = role
            .strip_prefix("blocks.")
            .and_then(|role| role.split('.').next());
        let index = index.and_then(|index| index.parse().ok());
        index.map_or(Self::Stack, Self::Block)
    }
}
