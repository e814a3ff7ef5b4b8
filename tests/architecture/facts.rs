//! The table in ARCHITECTURE.md of what the configurations of blocks can say, and the families that need it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use candle_blocks::{
    AttentionConfig, BlockConfig, CheckpointOptions, ExpertsConfig, FeedForwardConfig, NormConfig,
    NormPlacement, StackConfig,
    checkpoint::scheme::StackPart,
    config::{
        GatedDeltaNetConfig, LightningConfig, Mamba2Config, MambaConfig, ResidualConfig,
        RgLruConfig, RoutingConfig, ShortConvolutionConfig,
    },
};
use serde_json::{Value, json};

use crate::{is_published, package::package};

/// The files whose structs and enums are in the table.
const FILES: [&str; 12] = [
    "block.rs",
    "mixer/attention.rs",
    "mixer/short_convolution.rs",
    "mixer/gated_delta_net.rs",
    "mixer/mamba.rs",
    "mixer/mamba2.rs",
    "mixer/hybrid_heads.rs",
    "mixer/rg_lru.rs",
    "mixer/lightning.rs",
    "feed_forward.rs",
    "norm.rs",
    "stack.rs",
];

/// How many facts fewer than three families need. It only falls, but for new mixers, until more families have them.
const MOST_EXCEPTIONS: usize = 30 + 5 + 10 + 2 + 3 + 2 + 6 + 6;

/// The structs and enums of the configurations: their names, and each field or variant with its type.
type Types = BTreeMap<String, Vec<(String, String)>>;

/// Returns the public structs and enums in the files. Hidden fields, and structs that are no part of a configuration, are left out.
fn types() -> Types {
    let mut types = Types::new();
    for file in FILES {
        let code = fs::read_to_string(package("crates/layers/src/config").join(file)).unwrap();
        let mut lines = code.lines();
        while let Some(line) = lines.next() {
            let declared = ["pub struct ", "pub enum "];
            let Some(name) = declared.iter().find_map(|word| line.strip_prefix(word)) else {
                continue;
            };
            let is_enum = line.contains("enum");
            let mut members = Vec::new();
            let mut is_hidden = false;
            for line in lines.by_ref().take_while(|line| *line != "}") {
                is_hidden |= line.contains("doc(hidden)");
                let Some(member) = line.strip_prefix("    ") else {
                    continue;
                };
                let member = match is_enum {
                    true => member
                        .starts_with(|c: char| c.is_ascii_uppercase())
                        .then_some(member),
                    false => member.strip_prefix("pub "),
                };
                if let Some(member) = member.filter(|_| !std::mem::take(&mut is_hidden)) {
                    let end = member.find(|c: char| !c.is_alphanumeric() && c != '_');
                    let (name, ty) = member.split_at(end.unwrap_or(member.len()));
                    let of_optional = ty.split(['<', ' ', ',', '>', '(', ')', ':']);
                    let mut ty = of_optional.filter(|word| !["", "Option", "Vec"].contains(word));
                    members.push((
                        name.to_string(),
                        ty.next_back().unwrap_or_default().to_string(),
                    ));
                }
            }
            types.insert(name.trim_end_matches(" {").to_string(), members);
        }
    }
    types.remove("HeadsOfRank");
    types
}

/// Returns what a struct says without its settings: its constructor's result for the same sizes, without these.
fn default_of(name: &str, value: &Value) -> Value {
    let size = |key: &str| value[key].as_u64().unwrap_or(1) as usize;
    let attention =
        || AttentionConfig::with_head_dim(size("d_model"), size("n_heads"), size("head_dim"));
    let norm = |d_model| NormConfig::layer_norm(d_model, 1.0);
    let block = || {
        let network = FeedForwardConfig::new(1);
        let attention = AttentionConfig::with_head_dim(1, 1, 1);
        BlockConfig::new(attention, network, norm(1), NormPlacement::Pre)
    };
    let routing = || RoutingConfig::new(size("top_k"));
    let (default, sizes) = match name {
        "AttentionConfig" => (json!(attention()), vec!["d_model", "n_heads", "head_dim"]),
        "FeedForwardConfig" => (
            json!(FeedForwardConfig::new(size("d_model"))),
            vec!["d_model"],
        ),
        "ExpertsConfig" => {
            let experts = ExpertsConfig::new(size("n_experts"), routing());
            (json!(experts), vec!["n_experts", "routing"])
        }
        "RoutingConfig" => (json!(routing()), vec!["top_k"]),
        "ShortConvolutionConfig" => {
            let convolution = ShortConvolutionConfig::new(size("d_model"), size("taps"));
            (json!(convolution), vec!["d_model", "taps"])
        }
        "GatedDeltaNetConfig" => {
            let heads = [size("n_key_heads"), size("n_value_heads")];
            let dims = [size("key_dim"), size("value_dim")];
            let delta = GatedDeltaNetConfig::new(size("d_model"), heads, dims);
            let given = [
                "d_model",
                "n_key_heads",
                "n_value_heads",
                "key_dim",
                "value_dim",
            ];
            (json!(delta), given.to_vec())
        }
        "MambaConfig" => {
            let sizes = ["d_model", "d_inner", "state_dim", "step_rank"];
            let [width, channels, elements, rank] = sizes.map(size);
            let mamba = MambaConfig::new(width, channels, elements, rank);
            (json!(mamba), sizes.to_vec())
        }
        "LightningConfig" => {
            let sizes = ["d_model", "n_heads", "head_dim"];
            let [width, heads, head_dim] = sizes.map(size);
            let lightning = LightningConfig::new(width, heads, head_dim);
            (json!(lightning), sizes.to_vec())
        }
        "RgLruConfig" => {
            let sizes = ["d_model", "d_inner", "n_heads"];
            let [width, channels, heads] = sizes.map(size);
            (
                json!(RgLruConfig::new(width, channels, heads)),
                sizes.to_vec(),
            )
        }
        "Mamba2Config" => {
            let heads = [size("n_heads"), size("head_dim")];
            let mamba = Mamba2Config::new(size("d_model"), heads, size("state_dim"));
            let sizes = ["d_model", "n_heads", "head_dim", "state_dim"];
            (json!(mamba), sizes.to_vec())
        }
        "NormConfig" => (json!(norm(size("d_model"))), vec!["d_model", "eps"]),
        "ResidualConfig" => (json!(ResidualConfig::default()), vec![]),
        "BlockConfig" => {
            let given = ["attention", "feed_forward", "norm"];
            let placements = ["attention_placement", "feed_forward_placement"];
            (json!(block()), [&given[..], &placements].concat())
        }
        "StackConfig" => {
            let n_blocks = value["blocks"].as_array().map_or(0, Vec::len);
            let stack = StackConfig::uniform(block(), n_blocks, None);
            (json!(stack), vec!["blocks", "final_norm"])
        }
        // All of whose settings are given.
        _ => (Value::Null, vec![]),
    };
    let mut default = default;
    if let Some(default) = default.as_object_mut() {
        default.retain(|key, _| !sizes.contains(&&key[..]));
    }
    default
}

/// Returns the key of a block's mixer, and the struct with its settings.
fn mixer(block: &serde_json::Map<String, Value>) -> (&'static str, &'static str) {
    let mixers = [
        ("attention", "AttentionConfig"),
        ("short_convolution", "ShortConvolutionConfig"),
        ("mamba", "MambaConfig"),
        ("mamba2", "Mamba2Config"),
        ("rg_lru", "RgLruConfig"),
        ("lightning", "LightningConfig"),
        ("hybrid_heads", "HybridHeadsConfig"),
        ("gated_delta_net", "GatedDeltaNetConfig"),
        ("absent", "Absent"),
    ];
    let own = mixers.into_iter().find(|(key, _)| block.contains_key(*key));
    own.unwrap_or_else(|| panic!("a block with another mixer: {:?}", block.keys()))
}

/// Adds the fields and variants that differ from the default.
fn collect(types: &Types, name: &str, value: &Value, facts: &mut BTreeSet<String>) {
    let Some(members) = types.get(name) else {
        return;
    };
    if let Value::Array(all) = value {
        return all.iter().for_each(|of| collect(types, name, of, facts));
    }
    let is_struct = members[0].0.starts_with(|c: char| c.is_ascii_lowercase());
    if !is_struct {
        let (variant, inner) = match value {
            Value::String(variant) => (variant, &Value::Null),
            Value::Object(object) => object.iter().next().unwrap(),
            _ => return,
        };
        let is_same = |name: &str| name.to_lowercase() == variant.replace('_', "");
        let (variant, of) = members.iter().find(|(name, _)| is_same(name)).unwrap();
        facts.insert(format!("{name}::{variant}"));
        return collect(types, of, inner, facts);
    }
    let Value::Object(object) = value else {
        return;
    };
    let default = default_of(name, value);
    for (field, of) in members {
        // Two fields are serialized beside the others.
        let (value, of, differs) = match &field[..] {
            "mixer" => {
                let (key, of) = mixer(object);
                (&object[key], of, true)
            }
            "own" => {
                let known = |key: &&String| members.iter().any(|(field, _)| field == *key);
                let mut own = object
                    .keys()
                    .filter(|key| !known(key) && *key != mixer(object).0);
                (&Value::Null, "", own.any(|key| object[key] != default[key]))
            }
            _ => {
                let is_off = [Value::Null, Value::Bool(false)].contains(&object[field]);
                let is_default = object[field] == default[field] || default.is_null() && is_off;
                (&object[field], &of[..], !is_default)
            }
        };
        if differs {
            facts.insert(format!("{name}::{field}"));
        }
        collect(types, of, value, facts);
    }
}

/// A committed configuration.
struct Committed {
    name: String,
    facts: BTreeSet<String>,
    /// The model types that the file names.
    model_types: BTreeSet<String>,
}

/// Reads the stacks that a `config.json` describes; nothing if its model has no family here.
fn read(types: &Types, name: String, config: &Path) -> Committed {
    let parts = [
        StackPart::Encoder,
        StackPart::Decoder,
        StackPart::Text,
        StackPart::Vision,
    ];
    let options = CheckpointOptions::default;
    let each = parts.into_iter().map(|part| options().part(part));
    let mut facts = BTreeSet::new();
    for options in each.chain([options()]) {
        if let Ok(read) = options.architecture(config) {
            collect(types, "StackConfig", &json!(read.config), &mut facts);
        }
    }
    let text = fs::read_to_string(config).unwrap();
    let named = text.split("\"model_type\"").skip(1);
    let named = named.filter_map(|rest| rest.split('"').nth(1));
    let model_types = named.filter(|name| !name.is_empty()).map(str::to_string);
    Committed {
        name,
        facts,
        model_types: model_types.collect(),
    }
}

/// Returns the configurations of the committed checkpoints, those of models on the Hub, and the defaults of transformers' classes.
fn committed(types: &Types) -> Vec<Committed> {
    let folders = ["weights/families", "weights/heads"];
    let entries = folders
        .iter()
        .flat_map(|folder| fs::read_dir(package(folder)).unwrap());
    let folders = entries.map(|entry| entry.unwrap().path());
    let of_folder = |folder: PathBuf| {
        let name = folder.file_name().unwrap().to_str().unwrap().to_string();
        read(types, name, &folder.join("config.json"))
    };
    let mut all: Vec<Committed> = folders.map(of_folder).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    for list in ["default_configs", "published_configs", "hub_configs"] {
        let configs = fs::read(package(&format!("weights/{list}.json"))).unwrap();
        let configs: BTreeMap<String, Value> = serde_json::from_slice(&configs).unwrap();
        for (name, config) in configs {
            fs::write(&path, config.to_string()).unwrap();
            all.push(read(types, name, &path));
        }
    }
    all
}

/// A row of the table.
struct Row {
    facts: Vec<String>,
    families: Vec<String>,
    reason: String,
}

/// Returns the table's rows. `A::{b, c}` names two facts.
fn rows() -> Vec<Row> {
    let page = fs::read_to_string(package("ARCHITECTURE.md")).unwrap();
    let lines = page
        .lines()
        .skip_while(|line| !line.starts_with("| fact |"));
    let lines = lines.skip(2).take_while(|line| line.starts_with('|'));
    let row = |line: &str| {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, facts, families, reason, _] = cells[..] else {
            panic!("three cells: {line}");
        };
        let facts = facts.trim_matches('`');
        let facts = match facts.split_once("::{") {
            None => vec![facts.to_string()],
            Some((of, names)) => {
                let names = names.trim_end_matches('}').split(", ");
                names.map(|name| format!("{of}::{name}")).collect()
            }
        };
        let families = families.split(", ").filter(|name| !name.is_empty());
        Row {
            facts,
            families: families.map(str::to_string).collect(),
            reason: reason.to_string(),
        }
    };
    lines.map(row).collect()
}

#[test]
fn each_fact_of_the_core_is_needed_by_three_families() {
    if is_published() {
        return assert!(package("Cargo.toml.orig").exists()); // the families are in the repository alone
    }
    let types = types();
    let of_type = |(name, members): (&String, &Vec<(String, String)>)| {
        let facts = members
            .iter()
            .map(|(member, _)| format!("{name}::{member}"));
        facts.collect::<Vec<_>>()
    };
    let all: BTreeSet<String> = types.iter().flat_map(of_type).collect();
    let committed = committed(&types);
    let source = |family: &str| {
        let file = package("src/checkpoint/families").join(format!("{family}.rs"));
        fs::read_to_string(file).unwrap_or_else(|error| panic!("{family}.rs: {error}"))
    };
    // The committed configurations with a fact whose model type a family's file names.
    let with = |family: &str, fact: &String| {
        let code = source(family);
        let is_named = |model_type: &String| code.contains(&format!("\"{model_type}\""));
        let configs = committed
            .iter()
            .filter(|of| of.facts.contains(fact) && of.model_types.iter().any(is_named));
        configs.map(|of| &of.name[..]).collect::<BTreeSet<&str>>()
    };
    let (mut listed, mut wrong, mut n_exceptions) = (BTreeSet::new(), Vec::new(), 0);
    for row in rows() {
        let n_families = row.families.iter().collect::<BTreeSet<_>>().len();
        let is_exception = n_families < 3;
        if is_exception == row.reason.is_empty() {
            wrong.push(format!(
                "{:?}: expected three families, or fewer and a reason",
                row.facts
            ));
        }
        for fact in &row.facts {
            n_exceptions += usize::from(is_exception);
            if !listed.insert(fact.clone()) {
                wrong.push(format!("{fact} has two rows"));
            }
            let mut found = BTreeSet::new();
            for family in &row.families {
                let configs = with(family, fact);
                // No committed configuration may set what the family's code can.
                let code = source(family);
                let field = fact.rsplit("::").next().unwrap();
                let is_field = field.starts_with(|c: char| c.is_ascii_lowercase());
                let is_named = code.contains(fact) || is_field && code.contains(field);
                if configs.is_empty() && is_named {
                    found.insert(&family[..]);
                } else if configs.is_empty() {
                    wrong.push(format!("{family} does not set {fact}"));
                }
                found.extend(configs);
            }
            if found.len() < n_families {
                wrong.push(format!("{fact}: only {found:?} set it"));
            }
        }
    }
    wrong.extend(
        all.difference(&listed)
            .map(|fact| format!("{fact} has no row")),
    );
    wrong.extend(
        listed
            .difference(&all)
            .map(|fact| format!("{fact} is no field or variant")),
    );
    assert!(
        wrong.is_empty(),
        "ARCHITECTURE.md, the facts of the core:\n{}",
        wrong.join("\n")
    );
    assert_eq!(n_exceptions, MOST_EXCEPTIONS, "lower MOST_EXCEPTIONS");
}
