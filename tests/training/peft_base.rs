//! The base model and the task in the files of an adapter: PEFT and this crate open the folder alone.

use std::fs;
use std::path::Path;

use candle_blocks::{
    Checkpoint, CheckpointOptions, Parameters, Stack, Weights,
    candle_core::{DType, Tensor},
    checkpoint::scheme::StackPart,
    train::{Lora, LoraConfig},
};
use serde_json::{Value, json};

use crate::{
    committed::present, device::device, numbers::numbers, said::assert_says, weights::weights,
};

fn attached(checkpoint: &Checkpoint, seed: u64) -> (Stack, Lora) {
    let mut stack = checkpoint
        .load(Weights::Dense(DType::F32, &device()))
        .stack()
        .unwrap();
    let config = LoraConfig::new(2, 4.0, &["attention.query", "feed_forward.*"]);
    let lora = Lora::attach(&mut stack, config, seed).unwrap();
    // `B` starts at 0.
    for (i, (_, variable)) in lora.parameters().into_iter().enumerate() {
        let value = |j: usize| ((j * 31 + i * 17 + seed as usize) % 47) as f32 / 470.0 - 0.05;
        let values = Tensor::from_iter((0..variable.elem_count()).map(value), &device());
        let values = values.unwrap().reshape(variable.shape()).unwrap();
        variable.set(&values).unwrap();
    }
    (stack, lora)
}

fn outputs(stack: &Stack, checkpoint: &Checkpoint) -> Vec<f64> {
    let width = checkpoint.config().blocks[0].d_model();
    let x = Tensor::arange(0f32, (10 * width) as f32, &device()).unwrap();
    let x = x.sin().unwrap().reshape((2, 5, width)).unwrap();
    numbers(&stack.forward(&x).unwrap())
}

#[track_caller]
fn assert_close(found: &[f64], expected: &[f64], what: &str) {
    let scale = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
    let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let off = off.fold(0.0, f64::max) / scale;
    assert!(off < 1e-5, "{what}: {off}");
}

fn config_of(folder: &Path) -> Value {
    let text = fs::read_to_string(folder.join("adapter_config.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// PEFT's `task_type` of a language model, and otherwise the class that PEFT's `auto_mapping` names.
#[test]
fn an_adapter_names_its_base_model_and_its_task() {
    let cases = [
        ("tiny-gpt2", Some("GPT2LMHeadModel"), Ok("CAUSAL_LM")),
        ("tiny-gpt2", Some("GPT2Model"), Err("GPT2Model")),
        (
            "tiny-bert",
            Some("BertForSequenceClassification"),
            Err("BertForSequenceClassification"),
        ),
        (
            "tiny-bert",
            Some("BertForTokenClassification"),
            Err("BertForTokenClassification"),
        ),
        (
            "tiny-bert",
            Some("BertForQuestionAnswering"),
            Err("BertForQuestionAnswering"),
        ),
        ("tiny-bert", Some("BertForMaskedLM"), Err("BertForMaskedLM")),
        ("families/llama", Some("LlamaForCausalLM"), Ok("CAUSAL_LM")),
        ("families/llama", None, Ok("CAUSAL_LM")),
        ("families/vit", Some("ViTModel"), Err("ViTModel")),
        (
            "families/t5",
            Some("T5ForConditionalGeneration"),
            Ok("SEQ_2_SEQ_LM"),
        ),
        (
            "families/whisper",
            Some("WhisperForConditionalGeneration"),
            Err("WhisperForConditionalGeneration"),
        ),
        (
            "families/llava",
            Some("LlavaForConditionalGeneration"),
            Err("LlavaForConditionalGeneration"),
        ),
    ];
    for (name, class, expected) in present(cases, |case| case.0) {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().join("base");
        fs::create_dir(&base).unwrap();
        for entry in fs::read_dir(weights(name)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, base.join(path.file_name().unwrap())).unwrap();
        }
        let path = base.join("config.json");
        let mut json: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        json.as_object_mut().unwrap().remove("architectures");
        if let Some(class) = class {
            json["architectures"] = json!([class]);
        }
        fs::write(&path, json.to_string()).unwrap();
        let options = match name {
            "families/t5" | "families/whisper" => {
                CheckpointOptions::default().part(StackPart::Decoder)
            }
            _ => CheckpointOptions::default(),
        };
        let checkpoint = options.clone().open(&base).unwrap();
        let mut stack = checkpoint
            .load(Weights::Dense(DType::F32, &device()))
            .stack()
            .unwrap();
        let config = LoraConfig::new(2, 4.0, &["blocks.0.attention.query"]);
        let lora = Lora::attach(&mut stack, config, 1).unwrap();
        let adapter = folder.path().join("adapter");
        lora.save_peft(&checkpoint, &adapter).unwrap();
        let json = config_of(&adapter);
        let named = json["base_model_name_or_path"].as_str().unwrap();
        assert_eq!(
            Path::new(named).canonicalize().unwrap(),
            base.canonicalize().unwrap()
        );
        let (task, mapping) = match expected {
            Ok(task) => (json!(task), Value::Null),
            Err(class) => (
                Value::Null,
                json!({"base_model_class": class, "parent_library": "transformers"}),
            ),
        };
        assert_eq!(
            (&json["task_type"], &json["auto_mapping"]),
            (&task, &mapping),
            "{name}"
        );
        let alone = options.open(&adapter).unwrap();
        assert_eq!(alone.report().adapters.len(), 1, "{name}");
    }
}

#[test]
fn the_folder_of_an_adapter_is_opened_alone() {
    for name in present(["tiny-bert", "families/llama"], |name| name) {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        let (stack, lora) = attached(&checkpoint, 1);
        let folder = tempfile::tempdir().unwrap();
        lora.save_peft(&checkpoint, folder.path()).unwrap();
        let alone = Checkpoint::open(folder.path()).unwrap();
        let found = outputs(
            &alone
                .load(Weights::Dense(DType::F32, &device()))
                .stack()
                .unwrap(),
            &alone,
        );
        assert_close(&found, &outputs(&stack, &checkpoint), name);
    }
}

/// Two adapters, one trained over the other: the second belongs to the model with the first.
#[test]
fn a_second_adapter_is_saved_over_the_merged_model_alone() {
    for name in present(["tiny-bert", "families/llama"], |name| name) {
        let folder = tempfile::tempdir().unwrap();
        let [first, merged, second] =
            ["first", "merged", "second"].map(|name| folder.path().join(name));
        let base = Checkpoint::open(weights(name)).unwrap();
        attached(&base, 1).1.save_peft(&base, &first).unwrap();
        let with_first = CheckpointOptions::default()
            .adapter(&first)
            .open(weights(name))
            .unwrap();
        let (stack, lora) = attached(&with_first, 2);
        let own = weights(name).display().to_string();
        for refused in [
            lora.save_peft(&with_first, &second),
            lora.save_peft_on(&with_first, &second, &own),
        ] {
            let words = ["first", "`Checkpoint::save`", "`Lora::save_peft_on`"];
            assert_says(refused.unwrap_err(), &words);
            assert!(!second.exists());
        }
        // The advice.
        with_first.save(&merged, Parameters::default()).unwrap();
        lora.save_peft_on(&with_first, &second, &merged.display().to_string())
            .unwrap();
        let expected = outputs(&stack, &with_first);
        let alone = Checkpoint::open(&second).unwrap();
        let found = outputs(
            &alone
                .load(Weights::Dense(DType::F32, &device()))
                .stack()
                .unwrap(),
            &alone,
        );
        assert_close(&found, &expected, name);
        // Or the merged model first, and the second adapter over that.
        let merged = Checkpoint::open(&merged).unwrap();
        let (stack, lora) = attached(&merged, 2);
        let again = folder.path().join("again");
        lora.save_peft(&merged, &again).unwrap();
        assert_close(&outputs(&stack, &merged), &expected, name);
        assert_eq!(config_of(&again), config_of(&second));
    }
}

/// A snapshot in the Hub's cache has another path on every machine.
#[test]
fn a_base_model_in_the_hubs_cache_is_named_by_its_repository() {
    let folder = tempfile::tempdir().unwrap();
    let snapshot = folder.path().join("models--org--my--bert/snapshots/4fa1c3");
    fs::create_dir_all(&snapshot).unwrap();
    for file in ["config.json", "model.safetensors"] {
        fs::copy(weights("tiny-bert").join(file), snapshot.join(file)).unwrap();
    }
    let checkpoint = Checkpoint::open(&snapshot).unwrap();
    let out = folder.path().join("adapter");
    attached(&checkpoint, 1)
        .1
        .save_peft(&checkpoint, &out)
        .unwrap();
    assert_eq!(config_of(&out)["base_model_name_or_path"], "org/my--bert");
}

/// PEFT opens no GGUF file as a base model, and no file without a configuration.
#[test]
fn a_base_model_that_peft_cannot_open_is_requested() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    fs::copy(weights("tiny-bert").join("model.safetensors"), &file).unwrap();
    let options = CheckpointOptions::default().config(weights("tiny-bert").join("config.json"));
    let checkpoint = options.open(&file).unwrap();
    let lora = attached(&checkpoint, 1).1;
    let out = folder.path().join("adapter");
    assert_says(
        lora.save_peft(&checkpoint, &out).unwrap_err(),
        &["model.safetensors", "`Lora::save_peft_on`"],
    );
    lora.save_peft_on(&checkpoint, &out, "org/bert").unwrap();
    assert_eq!(config_of(&out)["base_model_name_or_path"], "org/bert");
    let refused = Checkpoint::open(&out).unwrap_err();
    assert_says(
        refused,
        &["names the base model \"org/bert\"", "`--adapter`"],
    );
}
