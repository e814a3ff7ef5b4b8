//! A family's table in a user's own file: the documented example loads, and what is wrong in one is named.

use std::{fs, path::PathBuf};

use candle_blocks::{
    Checkpoint, CheckpointOptions, Weights,
    candle_core::{DType, Device, Tensor},
    checkpoint::{scheme::Family, write::write_safetensors},
    model::{Model, ModelInput},
};
use serde_json::{Value, json};

use crate::{
    message::message,
    numbers::bits,
    said::assert_says,
    scratch::{Scratch, load},
    weights::weights,
};

/// Returns the path of the example in the documentation for `Family::from_json_file`.
fn example() -> PathBuf {
    weights("../examples/family.json")
}

/// Returns the example after a change, in a file in its own folder.
fn changed(change: impl FnOnce(&mut Value)) -> (tempfile::TempDir, PathBuf) {
    let mut table = serde_json::from_str(&fs::read_to_string(example()).unwrap()).unwrap();
    change(&mut table);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.json");
    fs::write(&path, table.to_string()).unwrap();
    (folder, path)
}

/// Returns the output of tiny-bert's blocks.
fn output(checkpoint: &Checkpoint) -> Vec<u64> {
    let stack = checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .stack()
        .unwrap();
    let x = Tensor::arange(0f32, 60.0, &Device::Cpu).unwrap();
    let x = x.sin().unwrap().reshape((1, 3, 20)).unwrap();
    bits(&stack.forward(&x).unwrap())
}

#[test]
fn the_documented_table_gives_the_bits_of_the_built_in_family() {
    let built_in = Checkpoint::open(weights("tiny-bert")).unwrap();
    let options = CheckpointOptions::default().family_file(example());
    let own = options.open(weights("tiny-bert")).unwrap();
    assert_eq!(own.family(), "my_bert");
    assert_eq!(output(&own), output(&built_in));
}

#[test]
fn comments_in_a_table_are_left_out() {
    let text = fs::read_to_string(example()).unwrap();
    let noted = text.replace("\n  \"block\"", "\n  // the blocks' \"names\n  \"block\"");
    assert_ne!(noted, text);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("table.json");
    fs::write(&path, format!("// {{ BERT's blocks\n{noted}")).unwrap();
    let options = CheckpointOptions::default().family_file(&path);
    let own = options.open(weights("tiny-bert")).unwrap();
    let built_in = Checkpoint::open(weights("tiny-bert")).unwrap();
    assert_eq!(output(&own), output(&built_in));
    // A comment has a line of its own, which counts in messages.
    fs::write(&path, "// one\n{\n\"name\": \"own\" // two\n}").unwrap();
    let error = Family::from_json_file(&path).unwrap_err().to_string();
    assert!(error.contains("line 3"), "{error}");
}

#[test]
fn blocks_given_in_the_table_need_no_config_json() {
    let built_in = Checkpoint::open(weights("tiny-bert")).unwrap();
    let config = serde_json::to_value(built_in.config()).unwrap();
    let block = config["blocks"][0].clone();
    for source in [
        json!({"uniform": {"n_blocks": 3, "block": block}}),
        json!({"stack": config}),
    ] {
        let (folder, path) = changed(|table| table["config"] = source);
        let file = folder.path().join("model.safetensors");
        fs::copy(weights("tiny-bert/model.safetensors"), &file).unwrap();
        let own = CheckpointOptions::default().family_file(path).open(file);
        assert_eq!(output(&own.unwrap()), output(&built_in));
    }
}

#[test]
fn the_program_takes_a_table() {
    let scratch = Scratch::of("tiny-bert");
    scratch.run(&[]).assert_status(0);
    let expected = load(&scratch.output());
    // The family that the table is for is not known.
    let config = fs::read_to_string(scratch.config()).unwrap();
    let renamed = config.replace("\"model_type\": \"bert\"", "\"model_type\": \"my_bert\"");
    assert_ne!(renamed, config);
    fs::write(scratch.config(), renamed).unwrap();
    scratch.run(&[]).assert_refused(&[
        "model_type \"my_bert\" is not a known family; nearest: ",
        "in a file with `--family FILE`",
    ]);
    let table = example();
    let flags = ["--family", table.to_str().unwrap()];
    scratch.run(&flags).assert_status(0);
    for (name, tensor) in load(&scratch.output()) {
        assert_eq!(bits(&tensor), bits(&expected[&name]), "{name}");
    }
    scratch.verify(&flags).assert_status(0);
    let inspected = scratch.inspect(&[&flags[..], &["--json"]].concat());
    inspected.assert_status(0);
    assert_eq!(inspected.json()["family"], "my_bert");
}

type Change = fn(&mut Value);

#[test]
fn faults_in_a_table_are_named_with_their_key() {
    let faults: [(Change, &str); 11] = [
        (
            |t| t["blocks"] = json!("h.{i}."),
            "key \"blocks\": is unknown; known: name, part",
        ),
        (
            |t| t["name"] = json!(7),
            "key \"name\": found 7, expected a string",
        ),
        (|t| t["name"] = Value::Null, "key \"name\": missing"),
        (
            |t| t["block"] = json!("h."),
            "key \"block\": found \"h.\", expected a string with {i}",
        ),
        (
            |t| t["block_rules"] = json!([]),
            "key \"block_rules\": missing",
        ),
        (
            |t| t["part"] = json!("middle"),
            "key \"part\": unknown variant `middle`",
        ),
        (
            |t| t["block_rules"][2]["role"] = json!("attention.valeu"),
            "key \"block_rules[2]\": role \"attention.valeu\" is unknown; nearest: attention.value",
        ),
        (
            |t| t["block_rules"][1]["orientation"] = json!("sideways"),
            "key \"block_rules[1]\": unknown variant `sideways`",
        ),
        (
            |t| t["block_rules"][0]["wieght"] = json!([]),
            "key \"block_rules[0]\": unknown field `wieght`",
        ),
        (
            |t| t["config"] = json!({"read_as": "brt"}),
            "key \"config\": read_as \"brt\" is not a known family; nearest: bart, bert",
        ),
        (
            |t| t["config"] = json!({"stack": {}}),
            "key \"config\": missing field `blocks`",
        ),
    ];
    for (change, words) in faults {
        let (_folder, path) = changed(change);
        let text = Family::from_json_file(&path).unwrap_err().to_string();
        assert!(text.starts_with(&path.display().to_string()), "{text}");
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

#[test]
fn renamed_embeddings_are_read_by_end_rules() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(
        weights("tiny-bert/config.json"),
        folder.path().join("config.json"),
    )
    .unwrap();
    let mut tensors = load(&weights("tiny-bert/model.safetensors"));
    let words = tensors.remove("embeddings.word_embeddings.weight").unwrap();
    tensors.insert("tok.weight".to_string(), words);
    let tensors: Vec<_> = tensors.into_iter().collect();
    write_safetensors(folder.path().join("model.safetensors"), &tensors, None).unwrap();
    let table = folder.path().join("table.json");
    let open = |json: Value| {
        fs::write(&table, json.to_string()).unwrap();
        let options = CheckpointOptions::default().family_file(&table);
        options
            .open(folder.path())?
            .load(Weights::Dense(DType::F32, &Device::Cpu))
            .model()
    };
    let rules = json!([{"role": "embeddings.word", "weight": ["tok.weight"]}]);
    let table_of = |rules: Value| json!({"name": "zephyr", "like": "bert", "end_rules": rules});
    let run = |model: &Model| {
        let ids = Tensor::new(&[[1u32, 5, 7]], &Device::Cpu).unwrap();
        bits(
            &model
                .forward(&ModelInput::tokens(&ids))
                .unwrap()
                .last_hidden_state,
        )
    };
    let renamed = open(table_of(rules.clone())).unwrap();
    let built_in = Checkpoint::open(weights("tiny-bert")).unwrap();
    let built_in = built_in
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .model()
        .unwrap();
    assert_eq!(run(&renamed), run(&built_in));

    let unknown = json!([{"role": "embeddings.wrd", "weight": ["tok.weight"]}]);
    assert_says(
        message(open(table_of(unknown))),
        &["end_rules[0]", "embeddings.wrd", "nearest"],
    );
    let mut whole: Value = serde_json::from_str(&fs::read_to_string(example()).unwrap()).unwrap();
    whole["end_rules"] = rules;
    assert_says(message(open(whole)), &["end_rules", "add like"]);
}

#[test]
fn missing_embeddings_are_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(
        weights("tiny-gpt2/config.json"),
        folder.path().join("config.json"),
    )
    .unwrap();
    let tensors = load(&weights("tiny-gpt2/model.safetensors"));
    let blocks: Vec<_> = tensors
        .into_iter()
        .filter(|(name, _)| !name.starts_with("wte") && !name.starts_with("wpe"))
        .collect();
    write_safetensors(folder.path().join("model.safetensors"), &blocks, None).unwrap();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let refusal = message(
        checkpoint
            .load(Weights::Dense(DType::F32, &Device::Cpu))
            .model(),
    );
    assert_says(&refusal, &["no embeddings", "wte.weight", "end_rules"]);
    assert_eq!(
        refusal.matches("invalid configuration").count(),
        1,
        "{refusal}"
    );
}
