//! A family described by a user's JSON file.

use std::{collections::BTreeSet, path::Path};

use serde::Deserialize;

use crate::{
    checkpoint::{
        config_json::{ConfigJson, MAX_BLOCKS},
        families,
        files::SIMILAR,
        initializer_range,
        nearest::{near, nearest},
        scheme::{Family, Rule, StackPart, StackSource},
    },
    config::{BlockConfig, NormConfig, RelativeBiasConfig, StackConfig},
    error::{Result, listed},
};

/// Every key of a table.
const KEYS: [&str; 9] = [
    "name",
    "part",
    "prefixes",
    "block",
    "block_rules",
    "stack_rules",
    "ignored",
    "outside",
    "config",
];

/// Where a table says that the configuration of its blocks comes from.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum ConfigSource {
    /// `config.json` has the keys of a known family, which this names by its `model_type`.
    ReadAs(String),
    /// Equal blocks.
    Uniform(Box<UniformStack>),
    /// Every block in full, as `inspect --json` prints it.
    Stack(Box<StackConfig>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UniformStack {
    n_blocks: usize,
    block: BlockConfig,
    final_norm: Option<NormConfig>,
    relative_bias: Option<RelativeBiasConfig>,
}

impl Family {
    /// Reads a family from a JSON file: the way to load a checkpoint of a family that the crate does not
    /// know without writing Rust.
    ///
    /// ```json
    #[doc = include_str!("../../examples/family.json")]
    /// ```
    ///
    /// Its keys are the fields of [`Family`], and those of a rule are the fields of [`Rule`]. Of these, `orientation`
    /// (`"in_out"` for weights stored as `[d_in, d_out]`), `part` (`{"fused": ["blocks", "query"]}`,
    /// `{"half": "first"}`) and `stacking` (`"stacked"`) describe tensors that are not plain `nn.Linear`
    /// weights. `config` is one of
    ///
    /// - `{"read_as": "bert"}`: `config.json` has the keys of that known family;
    /// - `{"uniform": {"n_blocks": 12, "block": {..}, "final_norm": {..}}}`: equal blocks, without a `config.json`;
    ///   copy `block` from what `candle-blocks inspect --json` prints for a similar checkpoint;
    /// - `{"stack": {..}}`: every block in full, as `inspect --json` prints `config`.
    ///
    /// # Errors
    /// If the file cannot be read, or a key is missing, unknown or malformed, or a role is not one that
    /// layers ask for; the error names file and key.
    pub fn from_json_file(path: impl AsRef<Path>) -> Result<Self> {
        let json = ConfigJson::open(path.as_ref())?;
        if let Some(unknown) = json.keys().find(|key| !KEYS.contains(key)) {
            let reason = format!("is not known; known: {}", KEYS.join(", "));
            return Err(json.error(&[unknown], reason));
        }
        let required =
            |key: &str, kind: &str| json.error(&[key], format!("missing, expected {kind}"));
        let list = |key: &str| json.texts(&[key]).map(Option::unwrap_or_default);
        let text = |key: &str, kind: &str| json.text(&[key])?.ok_or_else(|| required(key, kind));
        let part: Option<StackPart> = json.parsed("part")?;
        let block = text(
            "block",
            "the prefix of the names of block {i}, such as \"encoder.layer.{i}.\"",
        )?;
        if !block.contains("{i}") {
            let reason =
                format!("found {block:?}, expected a text with {{i}} for the block's number");
            return Err(json.error(&["block"], reason));
        }
        let known = families::all();
        let roles = |rules: fn(&Family) -> &[Rule]| {
            let rules = known.iter().flat_map(&rules);
            rules.map(|rule| rule.role.as_str()).collect()
        };
        let block_rules = rules(&json, "block_rules", &roles(|family| &family.block_rules))?;
        if block_rules.is_empty() {
            let reason = "missing or empty, expected a list of rules";
            return Err(json.error(&["block_rules"], reason));
        }
        let config = json.parsed("config")?;
        let config = match config.ok_or_else(|| required("config", "read_as, uniform or stack"))? {
            ConfigSource::ReadAs(model_type) => read_as(&json, &known, &model_type, part)?,
            ConfigSource::Uniform(uniform) if !(1..=MAX_BLOCKS).contains(&uniform.n_blocks) => {
                let found = uniform.n_blocks;
                let reason = format!("n_blocks is {found}, expected 1 to {MAX_BLOCKS}");
                return Err(json.error(&["config"], reason));
            }
            ConfigSource::Uniform(uniform) => StackSource::Given(Box::new(StackConfig {
                relative_bias: uniform.relative_bias,
                ..StackConfig::uniform(uniform.block, uniform.n_blocks, uniform.final_norm)
            })),
            ConfigSource::Stack(stack) => StackSource::Given(stack),
        };
        let prefixes = json.texts(&["prefixes"])?;
        Ok(Self {
            name: text("name", "the family's name")?,
            model_types: vec![],
            part,
            prefixes: prefixes.unwrap_or(vec![String::new()]),
            block,
            block_rules,
            stack_rules: rules(&json, "stack_rules", &roles(|family| &family.stack_rules))?,
            ignored: list("ignored")?,
            outside: list("outside")?,
            config,
            initialisation: initializer_range::normal,
            new_names: |_| Ok(&[]),
        })
    }
}

/// The rules under `key`, none if it is absent. Their roles must be among those of the known families, which
/// together have every role that a layer asks for.
fn rules(json: &ConfigJson, key: &str, roles: &BTreeSet<&str>) -> Result<Vec<Rule>> {
    let items: Option<Vec<serde_json::Value>> = json.parsed(key)?;
    let rule = |(i, item): (usize, serde_json::Value)| {
        let key = format!("{key}[{i}]");
        let rule: Rule =
            serde_json::from_value(item).map_err(|e| json.error(&[&key], e.to_string()))?;
        if roles.contains(rule.role.as_str()) {
            return Ok(rule);
        }
        let nearest = nearest(&rule.role, roles.iter().copied(), SIMILAR, 3);
        let nearest = listed("nearest:", &nearest);
        let reason = format!("role {:?} is not known{nearest}", rule.role);
        Err(json.error(&[&key], reason))
    };
    items.into_iter().flatten().enumerate().map(rule).collect()
}

/// The reading of `config.json` of the known family that `model_type` names.
fn read_as(
    json: &ConfigJson,
    known: &[Family],
    model_type: &str,
    part: Option<StackPart>,
) -> Result<StackSource> {
    let is_named = |family: &&Family| family.model_types.iter().any(|name| name == model_type);
    let family = known.iter().filter(is_named).find(|f| f.part == part);
    family.map(|family| family.config.clone()).ok_or_else(|| {
        let names = known.iter().flat_map(|family| &family.model_types);
        let nearest = near(model_type, names.map(String::as_str));
        let reason = format!(
            "read_as {model_type:?} is not a known family{}{}",
            part.map_or(String::new(), |part| format!(" with the part {part}")),
            listed("nearest:", &nearest)
        );
        json.error(&["config"], reason)
    })
}
