//! A GGUF file is a whole model: it loads, gives transformers' results, and stops; files beside it have no effect.

use std::fs;
use std::path::{Path, PathBuf};

use candle_blocks::text::{Message, TextGenerator};
use candle_blocks::{Checkpoint, Precision, Weights};
use serde_json::{Value, json};

use crate::scratch::{Answer, answer, load, program};
use crate::weights::{is_present, weights};

const MODEL: &str = "gguf-chat/model.gguf";

fn expected() -> Option<Value> {
    if !is_present("gguf-chat") {
        return None;
    }
    let text = fs::read_to_string(weights("gguf-chat/expected.json")).unwrap();
    Some(serde_json::from_str(&text).unwrap())
}

fn generate(model: &Path, arguments: &[&str]) -> Answer {
    let said = answer(
        program()
            .arg("generate")
            .arg("--model")
            .arg(model)
            .args(arguments),
    );
    said.assert_status(0);
    said
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).unwrap()
}

#[test]
fn a_file_answers_and_stops() {
    let Some(expected) = expected() else { return };
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("tokens.safetensors");
    let output = output.to_str().unwrap();
    let question = expected["question"].as_str().unwrap();
    for (chat, wanted) in [
        (true, &expected["tokens"]),
        (false, &expected["plain"]["tokens"]),
    ] {
        let mut arguments = vec![
            "--prompt",
            question,
            "--max-new-tokens",
            "24",
            "--output",
            output,
        ];
        arguments.extend(chat.then_some("--chat"));
        let said = generate(&weights(MODEL), &arguments);
        let tokens = load(Path::new(output))["tokens"].to_vec2::<u32>().unwrap();
        assert_eq!(tokens, [ids(wanted)], "chat: {chat}");
        // The quantized weights are dequantized unless an option asks for it.
        let notes: Vec<&str> = said
            .stderr
            .lines()
            .filter(|l| l.starts_with("note:"))
            .collect();
        let [note] = notes[..] else {
            panic!("{}", said.stderr)
        };
        assert!(note.contains("--precision as-stored"), "{note}");
        arguments.extend(["--precision", "f32"]);
        let said = generate(&weights(MODEL), &arguments);
        assert!(!said.stderr.contains("note:"), "{}", said.stderr);
        if chat {
            assert_eq!(
                said.stdout,
                format!("{}\n", expected["text"].as_str().unwrap())
            );
        }
    }
}

#[test]
fn a_conversation_is_the_prompt_of_transformers() {
    let Some(expected) = expected() else { return };
    let checkpoint = Checkpoint::open(weights(MODEL)).unwrap();
    let model = checkpoint
        .load(Weights::Packed(Precision::F32))
        .model()
        .unwrap();
    let generator = TextGenerator::new(&checkpoint, &model).unwrap();
    let question = expected["question"].as_str().unwrap();
    let prompt = generator.chat(&[Message::user(question)]).unwrap();
    assert_eq!(prompt.ids, ids(&expected["ids"]));
    assert_eq!(
        generator.prompt(question).unwrap().ids,
        ids(&expected["plain"]["ids"])
    );
}

/// Returns a folder with the model and another model's files.
fn beside(folder: &Path, tokens: &[u32]) -> PathBuf {
    let model = folder.join("model.gguf");
    fs::copy(weights(MODEL), &model).unwrap();
    let first = json!({"eos_token_id": tokens[0], "max_new_tokens": 3});
    fs::write(folder.join("generation_config.json"), first.to_string()).unwrap();
    fs::write(
        folder.join("chat_template.jinja"),
        "{{ messages[0]['content'] }}",
    )
    .unwrap();
    fs::write(folder.join("tokenizer.json"), "no tokenizer").unwrap();
    model
}

#[test]
fn files_beside_take_precedence_only_if_requested() {
    let Some(expected) = expected() else { return };
    let folder = tempfile::tempdir().unwrap();
    let tokens = ids(&expected["tokens"]);
    let model = beside(folder.path(), &tokens);
    let output = folder.path().join("tokens.safetensors");
    let output = output.to_str().unwrap();
    let question = expected["question"].as_str().unwrap();
    let arguments = [
        "--prompt",
        question,
        "--chat",
        "--max-new-tokens",
        "24",
        "--output",
        output,
    ];
    let said = generate(&model, &arguments);
    let made = || load(Path::new(output))["tokens"].to_vec2::<u32>().unwrap();
    assert_eq!(made()[0], tokens);
    for words in [
        "note:",
        "tokenizer.json",
        "generation_config.json",
        "are not read; --files-beside reads these instead",
    ] {
        assert!(said.stderr.contains(words), "{}", said.stderr);
    }
    // Now the files are read, of which one is no tokenizer.
    let generated = |arguments: &[&str]| {
        let said = program()
            .arg("generate")
            .arg("--model")
            .arg(&model)
            .args(arguments)
            .arg("--files-beside")
            .output();
        said.unwrap()
    };
    let said = generated(&arguments);
    assert!(
        !said.status.success() && String::from_utf8_lossy(&said.stderr).contains("tokenizer.json")
    );
    fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    fs::copy(
        weights("gguf-words/pairs/tokenizer.json"),
        folder.path().join("tokenizer.json"),
    )
    .unwrap();
    let said = generated(&arguments);
    assert!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
    assert_ne!(made(), [tokens]); // another template, and another end
}
