//! A family that differs little from a built-in one says only how, in a JSON file or in Rust.

use std::{fs, path::PathBuf};

use candle_blocks::checkpoint::scheme::RotaryKeys;
use candle_blocks::{
    Checkpoint, CheckpointOptions, Position, Result, RotaryPairing, StackConfig, Weights,
    candle_core::{DType, Device, Tensor},
    checkpoint::{
        config_json::ConfigJson,
        scheme::{BlockChange, Family, Rule, StackPart},
        write::write_safetensors,
    },
    trace,
    verify::{Comparer, Fixture, Scope},
};
use serde_json::{Map, Value, json};

use crate::{
    message::message, numbers::bits, said::assert_says, scratch::answer, scratch::load,
    scratch::program, weights::is_present, weights::weights,
};

const SMOLLM3: &str = "like/smollm3";

/// The documented table.
fn table() -> PathBuf {
    weights("../examples/smollm3.json")
}

fn smollm3(family: Family) -> Checkpoint {
    let options = CheckpointOptions::default().family(family);
    options.open(weights(SMOLLM3)).unwrap()
}

#[track_caller]
fn assert_is_torchs(checkpoint: &Checkpoint) {
    let fixture = Fixture::open(weights(SMOLLM3).join("fixture.safetensors")).unwrap();
    let input = trace::TraceInput::new(|name| fixture.tensor(name).cloned()).unwrap();
    let stages = trace::run_backward(checkpoint, &input, DType::F32, &Device::Cpu).unwrap();
    let produced = stages.into_iter().collect();
    let report = Comparer::new().verify(&fixture, &produced, Scope::ForwardAndBackward);
    assert!(report.passed, "{report}");
}

#[test]
fn smollm3_in_a_few_lines_of_json_gives_pytorchs_results() {
    let text = fs::read_to_string(table()).unwrap();
    assert!(text.lines().count() <= 15, "{text}");
    let checkpoint = smollm3(Family::from_json_file(table()).unwrap());
    assert_is_torchs(&checkpoint);
    let positions = checkpoint
        .config()
        .blocks
        .iter()
        .map(|block| &block.attention().unwrap().position);
    let rotates: Vec<bool> = positions
        .map(|position| *position != Position::None)
        .collect();
    assert_eq!(rotates, [true, false, false, true]);
    let windows = checkpoint
        .config()
        .blocks
        .iter()
        .map(|block| block.attention().unwrap().window);
    assert_eq!(windows.collect::<Vec<_>>(), [None, None, Some(3), Some(3)]);

    // The program takes the same file.
    let path = table();
    let fixture = weights(SMOLLM3).join("fixture.safetensors");
    let mut verify = program();
    verify.args(["verify", "--backward", "--family", path.to_str().unwrap()]);
    verify.arg("--model").arg(weights(SMOLLM3));
    answer(verify.arg("--fixture").arg(fixture)).assert_status(0);
    let mut inspect = program();
    inspect.arg("inspect").arg(weights(SMOLLM3)).arg("--json");
    let inspected = answer(inspect.arg("--family").arg(path));
    inspected.assert_status(0);
    assert_eq!(inspected.json()["family"], "smollm3");
    assert_eq!(inspected.json()["parameters"]["unused"], 0);
}

#[test]
fn without_its_difference_it_is_another_model() {
    let llama = smollm3(Family::known("llama", None).unwrap());
    let ours = smollm3(Family::from_json_file(table()).unwrap());
    assert_ne!(output(&llama), output(&ours));
}

#[test]
fn the_same_difference_in_rust_is_the_same_family() {
    let windows = json!({"attention": {"window": {"from": "sliding_window"}}});
    let family = Family::known("llama", None)
        .unwrap()
        .named("smollm3")
        .default_of("num_key_value_heads", 4)
        .default_of("rope_theta", 2e6)
        .default_of("tie_word_embeddings", true)
        .default_of("use_sliding_window", false)
        .change(
            BlockChange::new(json!({"attention": {"position": "none"}})).at("no_rope_layers", 0),
        )
        .change(
            BlockChange::new(windows)
                .at("use_sliding_window", true)
                .at("layer_types", "sliding_attention"),
        );
    let of_json = Family::from_json_file(table()).unwrap();
    assert_eq!(family.changes, of_json.changes);
    assert_eq!(family.keys, of_json.keys);
    let (ours, theirs) = (smollm3(family), smollm3(of_json));
    assert_eq!(ours.config(), theirs.config());
    assert_eq!(output(&ours), output(&theirs));
}

/// Reads a configuration as an author outside this crate would: starting from Llama's, with the rotation's own keys.
fn read(json: &ConfigJson) -> Result<StackConfig> {
    let mut stack = Family::known("llama", None)?.stack_config(json)?;
    let head_dim = stack.blocks[0].attention().unwrap().head_dim;
    let rotary = json.rotary(head_dim, 2e6)?;
    assert_eq!(json.partial_rotary(head_dim, 1.0, 2e6)?, rotary);
    assert_eq!(
        json.rotary_of_type("full_attention", "rope_theta", head_dim, 2e6)?,
        rotary
    );
    let section = json.rotary_section()?;
    assert_eq!(json.rotary_of(section.as_ref(), head_dim, 2e6)?, rotary);
    let rotates = json.numbers(&["no_rope_layers"])?;
    let rotates = rotates.ok_or_else(|| json.error(&["no_rope_layers"], "missing"))?;
    let types = json.sliding_layers(stack.blocks.len(), |_| false)?;
    let window = json.optional_size(&["sliding_window"])?;
    for (i, block) in stack.blocks.iter_mut().enumerate() {
        block.attention_mut().unwrap().position = match rotates[i] == 0.0 {
            true => Position::None,
            false => Position::Rotary(rotary.clone()),
        };
        block.attention_mut().unwrap().window = window.filter(|_| types[i]);
    }
    Ok(stack)
}

#[test]
fn a_family_in_rust_starts_from_a_built_in_one_and_reads_what_it_likes() {
    let family = Family::known("llama", None).unwrap().named("smollm3");
    assert_is_torchs(&smollm3(family.read_by(read)));
}

/// Returns the output of a decoder's blocks.
fn output(checkpoint: &Checkpoint) -> Vec<u64> {
    let stack = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .stack()
        .unwrap();
    let d_model = checkpoint.config().blocks[0].d_model();
    let x = Tensor::arange(0f32, 5.0 * d_model as f32, &Device::Cpu).unwrap();
    let x = x.sin().unwrap().reshape((1, 5, d_model)).unwrap();
    bits(&stack.forward(&x).unwrap())
}

const LLAMA: &str = "families/llama";

/// Returns Llama's checkpoint as another model's text stack: with other tensor names, and a nested configuration whose keys
/// are renamed or omitted.
fn nested() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tensors = load(&weights(LLAMA).join("model.safetensors")).into_iter();
    let renamed = |name: String| {
        let name = name.replace("model.layers.", "language.trunk.");
        let name = name
            .replace("model.", "language.")
            .replace("mlp.down_proj", "mlp.out");
        name.replace("language.norm", "language.last_norm")
    };
    let tensors: Vec<(String, Tensor)> = tensors.map(|(name, t)| (renamed(name), t)).collect();
    let one = tensors[0].1.clone();
    let others =
        ["vision.patch.weight", "language.trunk.0.cache"].map(|n| (n.to_string(), one.clone()));
    let all = [&tensors[..], &others].concat();
    write_safetensors(folder.path().join("model.safetensors"), &all, None).unwrap();
    let config = fs::read_to_string(weights(LLAMA).join("config.json")).unwrap();
    let mut config: Map<String, Value> = serde_json::from_str(&config).unwrap();
    let mut take = |key: &str| config.remove(key).unwrap();
    let renamed = json!({"depth": take("num_hidden_layers"), "heads": take("num_attention_heads")});
    take("rms_norm_eps");
    config.insert("shape".to_string(), renamed);
    let config = json!({"model_type": "sees_and_says", "text_config": {"decoder": config}});
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    folder
}

fn nested_table() -> Value {
    json!({
        "name": "sees_and_says",
        "like": "llama",
        "prefixes": ["language."],
        "block": "trunk.{i}.",
        "block_rules": [{"role": "feed_forward.down", "weight": ["mlp.out.weight"]}],
        "stack_rules": [{"role": "final_norm", "weight": ["last_norm.weight"]}],
        "ignored": ["*.cache"],
        "outside": ["vision.*"],
        "config": {
            "section": "text_config.decoder",
            "keys": {"num_hidden_layers": "shape.depth", "num_attention_heads": "shape.heads"},
            "defaults": {"rms_norm_eps": 2e-3},
        },
    })
}

/// Opens the nested checkpoint with a table.
fn open_nested(table: &Value) -> Result<Checkpoint> {
    let folder = nested();
    let path = folder.path().join("table.json");
    fs::write(&path, table.to_string()).unwrap();
    let opened = CheckpointOptions::default()
        .family_file(path)
        .open(folder.path())?;
    opened
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .stack()?;
    Ok(opened)
}

#[test]
fn rules_prefixes_patterns_and_keys_of_the_built_in_family_may_differ() {
    if !is_present(LLAMA) {
        return;
    }
    let folder = nested();
    let path = folder.path().join("table.json");
    fs::write(&path, nested_table().to_string()).unwrap();
    let options = CheckpointOptions::default().family_file(path);
    let nested = options.open(folder.path()).unwrap();
    let report = nested.report();
    assert_eq!(
        (report.unused.len(), report.missing.len()),
        (0, 0),
        "{report}"
    );
    assert_eq!(report.ignored, ["language.trunk.0.cache"]);
    assert!(report.outside.contains(&"vision.patch.weight".to_string()));
    let llama = Checkpoint::open(weights(LLAMA)).unwrap();
    assert_eq!(nested.config(), llama.config());
    assert_eq!(output(&nested), output(&llama));
}

#[test]
fn any_setting_of_blocks_and_stack_may_differ() {
    if !is_present(LLAMA) {
        return;
    }
    let mut table = nested_table();
    table["config"]["blocks"] = json!([
        {"set": {
            "attention": {"position": {"rotary": {"pairing": "interleaved"}}, "scale": {"from": "no_such", "default": 0.25}},
            "norm": {"eps": {"from": "vocab_size"}},
        }},
        {"where": {"hidden_act": "silu"}, "set": {"attention": {"query_key_norm": null}}},
    ]);
    table["config"]["set"] = json!({"final_norm": {"eps": 1e-3}, "output_dropout": 0.5});
    let checkpoint = open_nested(&table).unwrap();
    let config = checkpoint.config();
    for block in &config.blocks {
        let Position::Rotary(rotary) = &block.attention().unwrap().position else {
            panic!("{:?}", block.attention().unwrap().position);
        };
        assert_eq!(rotary.pairing, RotaryPairing::Interleaved);
        assert_eq!(
            (block.attention().unwrap().scale, block.norm.eps),
            (0.25, 11.0)
        );
    }
    assert_eq!(
        (config.final_norm.unwrap().eps, config.output_dropout),
        (1e-3, 0.5)
    );
    let replaced = json!({"alibi": {"slopes": "appended", "scale": 1.0}});
    table["config"]["blocks"] = json!([{"set": {"attention": {"position": replaced}}}]);
    let checkpoint = open_nested(&table).unwrap();
    let position = &checkpoint.config().blocks[1].attention().unwrap().position;
    assert!(matches!(position, Position::Alibi(_)), "{position:?}");
}

#[test]
fn faults_in_a_difference_are_named() {
    if !is_present(LLAMA) {
        return;
    }
    let blocks = ["config", "blocks"];
    let short = json!([{"where": {"vocab_size": 11, "turns": 0}, "set": {}}]);
    let given = json!({"blocks": [], "layers": [], "final_norm": null, "relative_bias": null});
    let faults: [(&[&str], Value, &[&str]); 12] = [
        (
            &["like"],
            json!("lama"),
            &["table.json: key \"like\": \"lama\" is not a known family; nearest: llama"],
        ),
        (
            &["like"],
            json!("t5"),
            &[
                "key \"like\": none chosen for a t5 checkpoint",
                "several stacks",
            ],
        ),
        (
            &["block"],
            json!("trunk."),
            &["key \"block\": found \"trunk.\", expected a string with {i}"],
        ),
        (
            &["config", "section"],
            json!("text_confg"),
            &["config.json: key \"text_confg\": missing, expected an object"],
        ),
        (
            &["config", "keys", "num_attention_heads"],
            json!("shape.n_heads"),
            &["config.json: key \"shape.n_heads\": missing, expected an integer"],
        ),
        (
            &["config", "sets"],
            json!({}),
            &["key \"config\": unknown field `sets`"],
        ),
        (
            &["config", "stack"],
            given,
            &[
                "key \"config\": section, keys, defaults, blocks and set",
                "uniform and stack do not read one",
            ],
        ),
        (
            &blocks,
            json!([{"set": {"attention": {"windo": 3}}}]),
            &[
                "config.json: the family sets attention.windo, which is not a setting; nearest: window",
            ],
        ),
        (
            &blocks,
            json!([{"set": {"attention": {"position": "nowhere"}}}]),
            &["config.json: what the family sets: unknown variant `nowhere`"],
        ),
        (
            &blocks,
            json!([{"where": {"no_rope_layers": 0}, "set": {}}]),
            &[
                "config.json: key \"no_rope_layers\": missing, expected a value or a list",
                "default",
            ],
        ),
        (
            &blocks,
            short,
            &["config.json: key \"turns\": lists 1 layers, expected 2"],
        ),
        (
            &blocks,
            json!([{"set": {"attention": {"window": {"from": "windw"}}}}]),
            &["config.json: key \"windw\": missing, expected a value that the family sets"],
        ),
    ];
    for (path, value, words) in faults {
        let mut table = nested_table();
        table["config"]["defaults"]["turns"] = json!([0]);
        let place = path
            .iter()
            .fold(&mut table, |inside, key| &mut inside[*key]);
        *place = value;
        assert_says(message(open_nested(&table)), words);
    }
}

#[test]
fn a_rust_family_of_no_known_name_or_part_is_refused() {
    let error = message(Family::known("llamma", None));
    assert_says(error, &["model_type", "\"llamma\"", "nearest: llama"]);
    let error = message(Family::known("t5", None));
    assert_says(error, &["part", "encoder or decoder"]);
    let family = Family::known("t5", Some(StackPart::Decoder)).unwrap();
    assert_eq!(family.part, Some(StackPart::Decoder));
    let family = family.replace_block_rules([Rule::linear("attention.query", &["q"])]);
    let rules = family
        .block_rules
        .iter()
        .filter(|rule| rule.role == "attention.query");
    assert_eq!(
        rules.map(|rule| &rule.weight[..]).collect::<Vec<_>>(),
        [["q.weight"]]
    );
}
