//! The result for each transformers model type's default `config.json`: docs/transformers.md.
//!
//! `CANDLE_BLOCKS_WRITE_MODEL_TYPES=1 cargo test --release --lib --test refusals model_types` writes the file, and docs/families.md.
//! Without the variable the test demands that today's answers are the file's, word for word.

use std::{cmp::Reverse, collections::BTreeMap, fmt::Write, fs, path::Path};

use candle_blocks::{CheckpointOptions, Error};
use serde_json::{Value, json};

use crate::weights::weights;

const VARIABLE: &str = "CANDLE_BLOCKS_WRITE_MODEL_TYPES";

/// Types whose default sizes transformers 5.24 cannot compute either: the call of the model raises an error about the same key.
const NOT_EVEN_THERE: [&str; 14] = [
    "deepseek_ocr2",
    "deepseek_ocr2_text",
    "deepseek_v2",
    "dots1",
    "glm46v",
    "glm4v",
    "glm4v_moe",
    "glm4v_moe_text",
    "glm4v_text",
    "glm_image",
    "glm_image_text",
    "glmga",
    "qwen3_omni_moe_text",
    "qwen3_omni_moe_thinker",
];

#[test]
fn the_document_says_of_the_model_types_of_transformers_what_comes_of_them() {
    let configs = fs::read_to_string(weights("default_configs.json")).unwrap();
    let configs: BTreeMap<String, Value> = serde_json::from_str(&configs).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let answer = |(name, config): (&String, &Value)| (name.clone(), answer(config, folder.path()));
    let rows: Vec<(String, String)> = configs.iter().map(answer).collect();
    for (name, row) in &rows {
        // A type that got built in has its name alone in the file, and no family to go with it.
        assert!(
            configs[name].as_object().unwrap().len() > 1
                || row.starts_with("has ")
                || row.starts_with("drafts "),
            "{name}: {row}; run `python weights/export.py default-configs`"
        );
        assert!(
            !row.contains("is not a known family"),
            "{name}: {row}; say in src/checkpoint/scheme/lacking.txt what it lacks"
        );
    }
    for name in NOT_EVEN_THERE {
        let row = rows.iter().find(|(of, _)| of == name);
        assert!(
            row.is_some_and(|(_, row)| !row.starts_with("loads")),
            "{name}"
        );
    }
    let today = document(&rows);
    let path = weights("../docs/transformers.md");
    if std::env::var_os(VARIABLE).is_some() {
        return fs::write(path, today).unwrap();
    }
    let written = fs::read_to_string(path).unwrap();
    let differing = written.lines().zip(today.lines()).find(|(a, b)| a != b);
    assert_eq!(
        written, today,
        "{differing:?}; set {VARIABLE}=1 to write docs/transformers.md again"
    );
}

#[test]
fn keys_are_read_under_the_further_names_of_each_class() {
    let read = |name: &str| fs::read_to_string(weights(name)).unwrap();
    let configs: BTreeMap<String, Value> =
        serde_json::from_str(&read("default_configs.json")).unwrap();
    let aliases: BTreeMap<String, BTreeMap<String, String>> =
        serde_json::from_str(&read("attribute_names.json")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let opened = |config: &Value| {
        fs::write(&path, config.to_string()).unwrap();
        let read = CheckpointOptions::default().whole().architecture(&path)?;
        let model = read.model_config().ok().cloned();
        Ok::<_, Error>((read.config, model))
    };
    let all = aliases.iter().flat_map(|(name, aliases)| {
        let each = aliases.iter();
        each.map(move |(alias, own)| (name, alias, own))
    });
    let (mut n_equal, mut differing) = (0, Vec::new());
    for (name, alias, own) in all {
        let Ok(default) = opened(&configs[name]) else {
            continue;
        };
        let with = |key: &str, value: &Value| {
            let mut config = configs[name].clone();
            config.as_object_mut().unwrap().remove(own);
            config[key] = value.clone();
            opened(&config)
        };
        // A value that counts.
        let values = others(configs[name].get(own).unwrap_or(&Value::Null));
        let found = values.into_iter().find_map(|value| {
            let expected = with(own, &value).ok()?;
            (expected != default).then_some((value, expected))
        });
        let Some((value, expected)) = found else {
            continue;
        };
        match with(alias, &value) {
            Ok(found) if found == expected => n_equal += 1,
            Ok(_) => differing.push(format!("{name}: {alias} is not read as {own}")),
            Err(error) => differing.push(format!("{name}: {alias} for {own}: {error}")),
        }
    }
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    assert!(n_equal > 120, "{n_equal}");
}

/// Other values that a key may have.
fn others(value: &Value) -> Vec<Value> {
    let size = value.as_u64().unwrap_or(0);
    match value {
        Value::Bool(value) => vec![json!(!value)],
        Value::Number(_) => [2 * size, size / 2, size + 1].map(Value::from).to_vec(),
        _ => vec![],
    }
}

/// Returns whether a `config.json` loads, or why not.
pub fn answer(config: &Value, folder: &Path) -> String {
    let path = folder.join("config.json");
    fs::write(&path, config.to_string()).unwrap();
    match CheckpointOptions::default().whole().architecture(folder) {
        Ok(read) if read.model_config().is_ok() => "loads".to_string(),
        Ok(_) => "loads, blocks only".to_string(),
        Err(Error::UnknownFamily {
            lacks: Some(lacks), ..
        }) => lacks.to_string(),
        Err(error) => {
            let said = error.to_string();
            let (_, said) = said.split_once("config.json: ").unwrap();
            match config["model_type"].as_str() {
                Some(name) if NOT_EVEN_THERE.contains(&name) => {
                    format!("{said}; transformers cannot compute these sizes either")
                }
                _ => said.to_string(),
            }
        }
    }
}

/// Each answer, and the model types that get it: those that load first, then the answer that most get.
fn document(rows: &[(String, String)]) -> String {
    let mut names_by_answer: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (name, answer) in rows {
        let names = names_by_answer.entry(answer).or_default();
        names.push(format!("`{name}`"));
    }
    let mut answers: Vec<_> = names_by_answer.into_iter().collect();
    answers.sort_by_key(|(answer, names)| (!answer.starts_with("loads"), Reverse(names.len())));
    let loading = answers
        .iter()
        .filter(|(answer, _)| answer.starts_with("loads"));
    let mut text = format!(
        "# Model types of transformers\n\n\
         This page is for readers who want to know whether a model loads, or why not. It lists the {} model types of\n\
         transformers 5.24. The default `config.json` loads for {} of them; the others are refused with the reason\n\
         before their names.\n\
         `python weights/export.py default-configs` makes the files, and a test\n\
         ([tests/refusals/of_transformers.rs](../tests/refusals/of_transformers.rs)) checks this list.\n\n",
        rows.len(),
        loading.map(|(_, names)| names.len()).sum::<usize>()
    );
    for (answer, names) in answers {
        let item = format!("- **{answer}** ({}): {}", names.len(), names.join(", "));
        writeln!(text, "{}", wrapped(&item)).unwrap();
    }
    text += "\nBack: [Model types that load](families.md) · [All pages](README.md) · Next: [Tolerances](tolerance.md)\n";
    text
}

/// Returns a list's item in lines of at most 120 characters.
fn wrapped(item: &str) -> String {
    let (mut text, mut length) = (String::new(), 0);
    for word in item.split(' ') {
        match length {
            0 => {}
            _ if length + 1 + word.len() > 120 => {
                text += "\n  ";
                length = 2;
            }
            _ => {
                text += " ";
                length += 1;
            }
        }
        text += word;
        length += word.len();
    }
    text
}
