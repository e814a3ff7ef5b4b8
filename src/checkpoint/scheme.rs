//! A checkpoint family as data: the role of each tensor on disk, and how it is stored.
//!
//! A [`Family`] is a table of rules. Each rule maps a role (`attention.query`) to names on disk, with an orientation and, if
//! several roles share a tensor, a slice. Weight and bias share one rule, so they cannot be permuted differently. Rules also
//! work in reverse, for gradients and saved weights.
//!
//! Most families differ little from another one: [`Family::known`] starts from a built-in family, as `"like"` does in a JSON
//! file ([`Family::from_json_file`]).
#![doc = include_str!("scheme/roles.md")]
#![doc = include_str!("scheme/end_roles.md")]

pub(crate) mod builtin;
mod difference;
pub(crate) mod family_file;
pub(crate) mod lacking;
pub(crate) mod new_names;
mod part;
mod rule;
pub(crate) mod table;

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::keys::initializer_range;
use crate::checkpoint::keys::masking::masked;
use crate::config::{
    BlockConfig, EmbeddingsConfig, HeadTask, Initialization, ReadoutConfig, StackConfig,
    TwoStackKind,
};
use crate::error::{Result, setters};

pub(in crate::checkpoint) use self::difference::ClassDefaults;
use self::difference::changed;
pub(crate) use self::{difference::Ties, part::Features, part::PartOwner};
pub use self::{
    difference::{BlockChange, ConfigKeys},
    part::{FusedLayout, GateHalf, MixerLayout, Part, Projection},
    rule::{Orientation, Rule, Stacking},
};
pub use crate::checkpoint::keys::rotary::RotaryKeys;
pub(crate) use crate::error::matches;

fn replace(all: &mut Vec<Rule>, rules: impl IntoIterator<Item = Rule>) {
    let rules: Vec<Rule> = rules.into_iter().collect();
    all.retain(|old| rules.iter().all(|new| new.role != old.role));
    all.extend(rules);
}

/// Returns owned copies, for a table's lists.
pub(crate) fn strings(items: &[&str]) -> Vec<String> {
    items.iter().map(|item| item.to_string()).collect()
}

/// One stack of a checkpoint that contains several. Pass it to [`CheckpointOptions::part`](crate::CheckpointOptions::part).
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

/// The source of a family's block configuration. Set it in [`Family::config`](crate::checkpoint::scheme::Family::config).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum StackSource {
    /// A function that reads it from `config.json`.
    Json(fn(&ConfigJson) -> Result<StackConfig>),
    /// A fixed configuration.
    Given(Box<StackConfig>),
}

/// Reads a stack's embeddings from `config.json`.
pub type ReadEmbeddings = fn(&ConfigJson, &StackConfig) -> Result<EmbeddingsConfig>;

/// Reads a stack's pooler or head from `config.json`.
pub type ReadReadout = fn(&ConfigJson, &StackConfig) -> Result<ReadoutConfig>;

/// Reads from `config.json` how a checkpoint's two stacks make one model.
pub type ReadTwoStackKind = fn(&ConfigJson) -> Result<TwoStackKind>;

/// A checkpoint family: a table of rules, and a function that reads its `config.json`.
/// Pass it to [`CheckpointOptions::family`](crate::CheckpointOptions::family).
#[derive(Clone, Debug)]
#[must_use]
pub struct Family {
    /// Its name.
    pub name: String,
    /// Values of `model_type` that select this family.
    pub model_types: Vec<String>,
    /// The stack that it describes, if checkpoints contain several.
    pub part: Option<StackPart>,
    /// Possible prefixes of all names, tried in order. Checkpoints without a head often have none.
    pub prefixes: Vec<String>,
    /// The prefix of names in block `{i}`. For blocks in groups, `{i/n}` is the group and `{i%n}` the index in it, with `n`
    /// blocks in each; `n` may be a key in config.json, which counts as 1 if absent.
    pub block: String,
    /// Rules for parameters inside a block. In their names, `{i}` stands for the block's index, for files whose blocks have no
    /// common prefix.
    pub block_rules: Vec<Rule>,
    /// Rules for the stack's parameters outside its blocks, such as the final norm.
    pub stack_rules: Vec<Rule>,
    /// Rules for embeddings, pooler and head. Their names are tried with the prefix and without.
    pub end_rules: Vec<Rule>,
    /// Tensors that are not parameters and are left out: patterns with `*`.
    pub ignored: Vec<String>,
    /// Parameters outside the stack (embeddings, heads): patterns with `*`.
    pub outside: Vec<String>,
    /// Roles that are not trained, because PyTorch has a buffer there: patterns with `*`.
    pub untrained: Vec<String>,
    /// The source of its block configuration.
    pub config: StackSource,
    /// Differences between its `config.json` and the keys that are read.
    pub keys: ConfigKeys,
    /// Changes to blocks after they were read.
    pub changes: Vec<BlockChange>,
    /// Changes to the stack after it was read, as in [`BlockChange::set`]; `null` for none.
    pub set: Value,
    /// Reads the embeddings from `config.json`; `None` if the family defines none.
    pub embeddings: Option<ReadEmbeddings>,
    /// Reads the pooler, if checkpoints may have one.
    pub pooler: Option<ReadReadout>,
    /// Reads each head that checkpoints may have, by task.
    pub heads: Vec<(HeadTask, ReadReadout)>,
    /// The other stack of a whole model, and the function that reads how the two are joined; in the family of the decoder or
    /// the text tower.
    pub joined: Option<(StackPart, ReadTwoStackKind)>,
    /// Reads the initialization of new parameters from `config.json`.
    pub initialization: fn(&ConfigJson) -> Result<Initialization>,
    /// Reads patterns for the names that a new checkpoint uses if a role has several. Outside the blocks, they also select
    /// among several names in the files.
    pub new_names: fn(&ConfigJson) -> Result<&'static [&'static str]>,
    /// Returns what follows [`Self::block`] in a name, for a role inside the block.
    pub within_block: fn(&BlockConfig, &str) -> &'static str,
}

impl Family {
    /// Makes an empty table whose block configuration the function `config` reads.
    pub fn new(
        name: &str,
        model_types: &[&str],
        config: fn(&ConfigJson) -> Result<StackConfig>,
    ) -> Self {
        Self::with_config(name, model_types, StackSource::Json(config))
    }

    /// Makes an empty table for blocks with the given configuration.
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
            within_block: |_, _| "",
        }
    }

    /// Sets its name, which is also its `model_type`.
    pub fn named(mut self, name: &str) -> Self {
        self.name = name.to_string();
        self.model_types = strings(&[name]);
        self
    }

    setters! {
        /// Sets which stack of a checkpoint it describes.
        part(part: StackPart) => part = Some(part);
        /// Sets the possible prefixes of all names, in the order in which they are tried.
        prefixes(prefixes: &[&str]) => prefixes = strings(prefixes);
        /// Sets the prefix of a block's names, in which `{i}` stands for the index.
        block(block: &str) => block = block.to_string();
        /// Sets the function that reads the block configuration. It may start from another family's [`Self::stack_config`].
        read_by(config: fn(&ConfigJson) -> Result<StackConfig>) => config = StackSource::Json(config);
        /// Reads the configuration from this object inside `config.json`, such as `text_config`.
        section(section: &str) => keys.section = Some(section.to_string());
        /// Changes settings of the stack after it was read, as [`BlockChange::set`] does for a block.
        set(set: Value) => set = set;
        /// Sets the function that reads the embeddings.
        embeddings(read: ReadEmbeddings) => embeddings = Some(read);
        /// Sets the function that reads the pooler.
        pooler(read: ReadReadout) => pooler = Some(read);
        /// Sets the function that reads the initialization of new parameters, instead of a single normal distribution.
        initialization(read: fn(&ConfigJson) -> Result<Initialization>) => initialization = read;
        /// Sets the function that reads the names for new checkpoints, instead of each role's first name.
        new_names(read: fn(&ConfigJson) -> Result<&'static [&'static str]>) => new_names = read;
        /// Sets what follows a block's prefix in the names of some blocks and roles (Zamba 2's `mamba_decoder.`).
        within_block(prefix: fn(&BlockConfig, &str) -> &'static str) => within_block = prefix;
    }

    /// Like [`Self::section`], for families with some files that lack this object and have its keys at the top level.
    pub fn section_or_whole(mut self, section: &str) -> Self {
        self.keys.or_whole = true;
        self.section(section)
    }

    /// Reads `key` outside the section too; see [`ConfigKeys::handed_on`].
    pub fn handed_on(mut self, key: &str) -> Self {
        self.keys.handed_on.push(key.to_string());
        self
    }

    /// Adds rules for parameters inside a block. If a role has several rules, the first one whose tensor exists counts.
    pub fn block_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.block_rules.extend(rules);
        self
    }

    /// Adds rules for parameters inside a block, and removes all other rules for the same roles.
    pub fn replace_block_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        replace(&mut self.block_rules, rules);
        self
    }

    /// Adds rules for the stack's parameters outside its blocks, and removes all other rules for the same roles.
    pub fn replace_stack_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        replace(&mut self.stack_rules, rules);
        self
    }

    /// Adds rules for the stack's parameters outside its blocks.
    pub fn stack_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.stack_rules.extend(rules);
        self
    }

    /// Adds rules for embeddings, pooler and head, and removes all other rules for the same roles.
    pub fn replace_end_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        replace(&mut self.end_rules, rules);
        self
    }

    /// Adds rules for embeddings, pooler and head.
    pub fn end_rules(mut self, rules: impl IntoIterator<Item = Rule>) -> Self {
        self.end_rules.extend(rules);
        self
    }

    /// Adds a head that checkpoints may have, and removes an earlier one for the same task. If `config.json` names no class,
    /// the first head in the files is used.
    pub fn head(mut self, task: HeadTask, read: ReadReadout) -> Self {
        match self.heads.iter_mut().find(|(known, _)| *known == task) {
            Some((_, known)) => *known = read,
            None => self.heads.push((task, read)),
        }
        self
    }

    /// Returns whether checkpoints may have a head for this task.
    pub(super) fn has_head(&self, task: HeadTask) -> bool {
        self.heads.iter().any(|(known, _)| *known == task)
    }

    /// Sets the other stack of a whole model, and how the two are joined.
    pub fn joined(mut self, with: StackPart, read: ReadTwoStackKind) -> Self {
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

    /// Adds roles that are not trained, because PyTorch has a buffer there: patterns with `*`.
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

    /// Sets the default value of a key that `config.json` may omit.
    pub fn default_of(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.keys.defaults.insert(key.to_string(), value.into());
        self
    }

    /// Takes defaults from transformers' class for another model type; this type belongs to code on the Hub.
    pub(super) fn like_class(mut self, model_type: &str) -> Self {
        self.keys.class_type = Some(model_type.to_string());
        self
    }

    /// Lets files omit these required sizes, which the defaults of transformers' configuration class have.
    pub(super) fn class_sizes(mut self, keys: &[&str]) -> Self {
        self.keys.class_sizes.extend(strings(keys));
        self
    }

    /// Changes blocks after they were read.
    pub fn change(mut self, change: BlockChange) -> Self {
        self.changes.push(change);
        self
    }

    /// Returns the block configuration that a `config.json` describes.
    ///
    /// # Errors
    /// If a key is missing, malformed or not supported.
    pub fn stack_config(&self, json: &ConfigJson) -> Result<StackConfig> {
        let json = &self.keys.seen(json)?;
        json.flag(&["tie_word_embeddings"], true)?; // also if no head reads it
        let mut stack = match &self.config {
            StackSource::Json(read) => match self.part {
                // Two towers have separate keys.
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

    /// Returns the table with sizes from `json` in its block prefix.
    ///
    /// # Errors
    /// If such a key does not contain a size.
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

    /// Returns the prefix of a block's names.
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

    /// Returns the place of a whole model's role: in a block, in the stack if one of its rules covers the role, or otherwise
    /// in the embeddings, pooler or head.
    pub(super) fn place(&self, role: &str) -> ModelPlace {
        let module = role.rsplit_once('.').map_or(role, |(module, _)| module);
        match ModelPlace::of(role) {
            ModelPlace::Stack if self.rules(module, ModelPlace::Stack).0.is_empty() => {
                ModelPlace::OutsideBlocks
            }
            place => place,
        }
    }

    /// Returns the rules for a role at a place in the model, and the number in the role.
    pub(super) fn rules(&self, role: &str, place: ModelPlace) -> (Vec<&Rule>, Option<usize>) {
        let rules = match place {
            ModelPlace::Block(_) => &self.block_rules,
            ModelPlace::Stack => &self.stack_rules,
            ModelPlace::OutsideBlocks => &self.end_rules,
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

/// A parameter's place in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelPlace {
    /// In the block with this index.
    Block(usize),
    /// In the stack, outside its blocks.
    Stack,
    /// In the embeddings, pooler or head.
    OutsideBlocks,
}

impl ModelPlace {
    /// Returns the place of a stack's role.
    pub fn of(role: &str) -> Self {
        let index = role
            .strip_prefix("blocks.")
            .and_then(|role| role.split('.').next());
        let index = index.and_then(|index| index.parse().ok());
        index.map_or(Self::Stack, Self::Block)
    }
}
