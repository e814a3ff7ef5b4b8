//! A family described by a user's JSON file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::checkpoint::config_json::{ConfigJson, MAX_BLOCKS};
use crate::checkpoint::families;
use crate::checkpoint::files::SIMILAR;
use crate::checkpoint::scheme::builtin::{Unknown, known};
use crate::checkpoint::scheme::{BlockChange, ConfigKeys, Family, Rule, StackPart, StackSource};
use crate::config::{
    BlockConfig, NormConfig, RelativeBiasConfig, RelativeEmbeddingsConfig, StackConfig,
};
use crate::error::{Result, listed, nearest};

/// All keys of a table.
const KEYS: [&str; 11] = [
    "name",
    "part",
    "like",
    "prefixes",
    "block",
    "block_rules",
    "stack_rules",
    "end_rules",
    "ignored",
    "outside",
    "config",
];

/// A table's entries about the block configuration: its source, and changes to it.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ConfigTable {
    read_as: Option<String>,
    uniform: Option<UniformStack>,
    stack: Option<StackConfig>,
    section: Option<String>,
    keys: BTreeMap<String, String>,
    defaults: Map<String, Value>,
    blocks: Vec<BlockChange>,
    set: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UniformStack {
    n_blocks: usize,
    block: BlockConfig,
    final_norm: Option<NormConfig>,
    relative_bias: Option<RelativeBiasConfig>,
    relative_embeddings: Option<RelativeEmbeddingsConfig>,
}

impl Family {
    /// Reads a family from a JSON file. Use it to load checkpoints of an unknown family without writing Rust.
    ///
    /// Most families differ from a known one in a few points, and a file only needs to list these. Lines that begin with `//`
    /// are comments. This is SmolLM3:
    ///
    /// ```json
    #[doc = include_str!("../../../examples/smollm3.json")]
    /// ```
    ///
    /// `like` names the known family by its `model_type` (with `part` where it has several stacks). Then `block_rules`,
    /// `stack_rules` and `end_rules` (embeddings, pooler and head) replace its rules for the same roles and add others,
    /// `ignored` and `outside` add patterns, and `prefixes` and `block` replace its own. Without `like`, a table has everything:
    ///
    /// ```json
    #[doc = include_str!("../../../examples/family.json")]
    /// ```
    ///
    /// Its keys are the fields of [`Family`], and those of a rule are the fields of [`Rule`]; the
    /// [module](crate::checkpoint::scheme#roles) lists the roles. Of a rule's fields, `orientation`
    /// (`"in_out"` for weights stored as `[d_in, d_out]`), `part` (`{"fused": ["blocks", "query"]}`,
    /// `{"half": "first"}`) and `stacking` (`"stacked"`, `"joined"`) describe tensors that are not plain `nn.Linear`
    /// weights. `config` has
    ///
    /// - `read_as`: the known family whose keys `config.json` has, if it is not the one in `like`;
    /// - `section`: the object in `config.json` that describes the blocks, such as `text_config`;
    /// - `keys`: the file's names of keys by those of the known family, with dots into objects
    ///   (`{"num_hidden_layers": "encoder.depth"}`);
    /// - `defaults`: values of keys that the file may leave out;
    /// - `blocks`: a list of [changes](crate::checkpoint::scheme::BlockChange) of what was read: `set` has the settings as
    ///   `candle-blocks inspect --json` prints those of a block, and `where` the keys of `config.json` that choose blocks;
    /// - `set`: the same for settings of the stack, such as `final_norm`;
    ///
    /// or, without a `config.json`, one of
    ///
    /// - `uniform`: `{"n_blocks": 12, "block": {..}, "final_norm": {..}}`, equal blocks;
    /// - `stack`: every block in full, as `inspect --json` prints `config`.
    ///
    /// # Errors
    /// If the file cannot be read, or a key is missing, unknown or malformed, or a role is not one that
    /// layers ask for; the error names file and key.
    pub fn from_json_file(path: impl AsRef<Path>) -> Result<Self> {
        let json = &ConfigJson::open_commented(path.as_ref())?;
        if let Some(unknown) = json.keys().find(|key| !KEYS.contains(key)) {
            let reason = format!("is unknown; known: {}", KEYS.join(", "));
            return Err(json.error(&[unknown], reason));
        }
        let part: Option<StackPart> = json.parsed("part")?;
        let like = json.text(&["like"])?;
        let like = like
            .map(|like| named(json, "like", &like, part))
            .transpose()?;
        let is_whole = like.is_none();
        let required =
            |key: &str, kind: &str| json.error(&[key], format!("missing, expected {kind}"));

        let table: Option<ConfigTable> = json.parsed("config")?;
        if table.is_none() && is_whole {
            return Err(required("config", "read_as, uniform or stack"));
        }
        let table = table.unwrap_or_default();
        let source = source(json, &table, part)?;
        let mut family = match (like, source) {
            (Some(like), None) => like,
            (Some(like), Some(config)) => Self { config, ..like },
            (None, Some(config)) => Self::with_config("", &[], config).prefixes(&[""]),
            (None, None) => return Err(required("config", "read_as, uniform or stack")),
        };
        let name = json.text(&["name"])?;
        family = family.named(&name.ok_or_else(|| required("name", "the family's name"))?);
        family.part = part.or(family.part);
        if let Some(prefixes) = json.texts(&["prefixes"])? {
            family.prefixes = prefixes;
        }
        match json.text(&["block"])? {
            Some(block) if block.contains("{i}") => family.block = block,
            Some(block) => {
                let reason =
                    format!("found {block:?}, expected a string with {{i}} for the block's index");
                return Err(json.error(&["block"], reason));
            }
            None if is_whole => {
                let kind = "the prefix of names in block {i}, such as \"encoder.layer.{i}.\"";
                return Err(required("block", kind));
            }
            None => {}
        }
        let roles = |rules: fn(&Family) -> &[Rule]| {
            let rules = families::all().flat_map(&rules);
            rules.map(|rule| rule.role.as_str()).collect()
        };
        let block_rules = rules(json, "block_rules", &roles(|family| &family.block_rules))?;
        if block_rules.is_empty() && is_whole {
            let reason = "missing or empty, expected a list of rules";
            return Err(json.error(&["block_rules"], reason));
        }
        let stack_rules = rules(json, "stack_rules", &roles(|family| &family.stack_rules))?;
        let end_rules = rules(json, "end_rules", &roles(|family| &family.end_rules))?;
        if !end_rules.is_empty() && is_whole {
            let reason =
                "names embeddings and heads, which only a table with `like` describes; add like";
            return Err(json.error(&["end_rules"], reason));
        }
        let mut family = family
            .replace_block_rules(block_rules)
            .replace_stack_rules(stack_rules)
            .replace_end_rules(end_rules);
        family
            .ignored
            .extend(json.texts(&["ignored"])?.unwrap_or_default());
        family
            .outside
            .extend(json.texts(&["outside"])?.unwrap_or_default());
        let mut defaults = family.keys.defaults;
        defaults.extend(table.defaults);
        let class = match &table.read_as {
            Some(model_type) => named(json, "config", model_type, part)?.keys.class,
            None => family.keys.class,
        };
        family.keys = ConfigKeys {
            or_whole: family.keys.or_whole && table.section.is_none(),
            section: table.section.or(family.keys.section),
            handed_on: family.keys.handed_on,
            renamed: table.keys,
            defaults,
            class,
            ..family.keys
        };
        (family.changes, family.set) = (table.blocks, table.set);
        Ok(family)
    }
}

/// Returns the source of the block configuration, if the table sets one.
fn source(
    json: &ConfigJson,
    table: &ConfigTable,
    part: Option<StackPart>,
) -> Result<Option<StackSource>> {
    let failed = |reason: String| Err(json.error(&["config"], reason));
    let given = match (&table.read_as, &table.uniform, &table.stack) {
        (None, None, None) => return Ok(None),
        (Some(model_type), None, None) => {
            return Ok(Some(named(json, "config", model_type, part)?.config));
        }
        (None, Some(uniform), None) if !(1..=MAX_BLOCKS).contains(&uniform.n_blocks) => {
            let found = uniform.n_blocks;
            return failed(format!("n_blocks is {found}, expected 1 to {MAX_BLOCKS}"));
        }
        (None, Some(uniform), None) => StackConfig {
            relative_bias: uniform.relative_bias,
            relative_embeddings: uniform.relative_embeddings,
            ..StackConfig::uniform(uniform.block.clone(), uniform.n_blocks, uniform.final_norm)
        },
        (None, None, Some(stack)) => stack.clone(),
        _ => {
            return failed("found several of read_as, uniform and stack, expected one".to_string());
        }
    };
    let is_read = table.section.is_some()
        || !table.keys.is_empty()
        || !table.defaults.is_empty()
        || !table.blocks.is_empty()
        || !table.set.is_null();
    match is_read {
        false => Ok(Some(StackSource::Given(Box::new(given)))),
        true => failed(
            "section, keys, defaults, blocks and set describe differences in a config.json, but \
             uniform and stack do not read one"
                .to_string(),
        ),
    }
}

/// Reads the rules under `key`; none if it is absent. Their roles must be known: the built-in families together have every
/// role that layers request.
fn rules(json: &ConfigJson, key: &str, roles: &BTreeSet<&str>) -> Result<Vec<Rule>> {
    let items: Option<Vec<Value>> = json.parsed(key)?;
    let rule = |(i, item): (usize, Value)| {
        let key = format!("{key}[{i}]");
        let rule: Rule =
            serde_json::from_value(item).map_err(|e| json.error(&[&key], e.to_string()))?;
        if roles.contains(rule.role.as_str()) {
            return Ok(rule);
        }
        let nearest = nearest(&rule.role, roles.iter().copied(), SIMILAR, 3);
        let nearest = listed("nearest:", &nearest);
        let reason = format!("role {:?} is unknown{nearest}", rule.role);
        Err(json.error(&[&key], reason))
    };
    items.into_iter().flatten().enumerate().map(rule).collect()
}

/// Returns the built-in family for the `model_type` under `key`.
fn named(
    json: &ConfigJson,
    key: &str,
    model_type: &str,
    part: Option<StackPart>,
) -> Result<Family> {
    let what = match key {
        "config" => "read_as ",
        _ => "",
    };
    known(model_type, part).map_err(|unknown| {
        let what = match unknown {
            Unknown::ModelType { .. } => what,
            Unknown::Part(_) => "",
        };
        let reason = format!("{what}{}", unknown.reason(model_type));
        json.error(&[key], reason)
    })
}
