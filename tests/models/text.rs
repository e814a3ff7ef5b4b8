//! Texts are continued in whole characters, end before stop strings, and conversations are written as transformers writes them.

use std::{fs, path::Path};

use candle_blocks::generate::{Finish, GenerationOptions, Generator, Sampler, Sampling};
use candle_blocks::text::{ChatTemplate, Message, TextGenerator, Tokenizer};
use candle_blocks::{Checkpoint, Precision};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::weights::{is_present, weights};

/// A directory with a tokenizer of bytes and this configuration of it.
fn tokenizer_with(config: &Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = weights("tiny-gpt-text/tokenizer.json");
    fs::copy(tokenizer, folder.path().join("tokenizer.json")).unwrap();
    let path = folder.path().join("tokenizer_config.json");
    fs::write(path, config.to_string()).unwrap();
    folder
}

fn template(folder: &Path) -> candle_blocks::Result<ChatTemplate> {
    ChatTemplate::of(&Tokenizer::open(folder).unwrap())
}

#[test]
fn conversations_are_written_as_transformers_writes_them() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let bytes = fs::read(weights("reference/chat.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let said = header["__metadata__"].as_object().unwrap();
    let cases: Vec<(&String, Value)> = said
        .iter()
        .filter(|(_, case)| case.as_str().unwrap().starts_with('{'))
        .map(|(name, case)| (name, serde_json::from_str(case.as_str().unwrap()).unwrap()))
        .collect();
    assert_eq!(cases.len(), 6);
    for (name, case) in cases {
        let token = |name: &str| json!({"content": case["tokens"][name], "special": true});
        let config = json!({
            "chat_template": [{"name": "default", "template": case["template"]}],
            "bos_token": token("bos_token"),
            "eos_token": case["tokens"]["eos_token"],
        });
        let folder = tokenizer_with(&config);
        let template = template(folder.path()).unwrap();
        let further = case["further"].as_object().unwrap();
        let prompts = further
            .get("add_generation_prompt")
            .is_some_and(|prompts| prompts == true);
        let ours = template.render_with(&case["messages"], prompts, further);
        match case["text"].as_str() {
            Some(text) => assert_eq!(ours.unwrap(), text, "{name}"),
            None => {
                let error = ours.unwrap_err().to_string();
                assert!(
                    error.contains(case["error"].as_str().unwrap()),
                    "{name}: {error}"
                );
            }
        }
    }
}

#[test]
fn a_file_of_its_own_goes_before_the_configuration() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let folder = tokenizer_with(&json!({"chat_template": "old"}));
    let path = folder.path().join("chat_template.jinja");
    fs::write(path, "new {{ messages[0].content }}\n").unwrap();
    let messages = [Message::user("text")];
    let text = template(folder.path())
        .unwrap()
        .render(&messages, true)
        .unwrap();
    assert_eq!(text, "new text");
}

#[test]
fn a_template_that_is_missing_or_wrong_is_said() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let refused = |config: Value| {
        let folder = tokenizer_with(&config);
        let said = match template(folder.path()) {
            Ok(template) => template.render(&[Message::user("a")], false).unwrap_err(),
            Err(error) => error,
        };
        said.to_string()
    };
    assert!(refused(json!({})).contains("chat_template.jinja"));
    assert!(refused(json!({"chat_template": "{% if %}"})).contains("line 1"));
    assert!(refused(json!({"chat_template": "\n{{ later() }}"})).contains("later"));
    assert!(
        refused(json!({"chat_template": [{"name": "other", "template": "a"}]})).contains("default")
    );
    let for_ever = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
    assert!(refused(json!({"chat_template": for_ever})).contains("fuel"));
}

fn checkpoint() -> Option<Checkpoint> {
    is_present("tiny-gpt-text").then(|| Checkpoint::open(weights("tiny-gpt-text")).unwrap())
}

/// The bytes behind a text, as tokens.
fn bytes(
    checkpoint: &Checkpoint,
    text: &str,
    options: GenerationOptions,
    sampler: Sampler,
) -> Vec<u8> {
    let model = checkpoint.packed_model(Precision::F32).unwrap();
    let generator = Generator::new(&model, options).unwrap();
    let prompt = text.bytes().map(u32::from).collect();
    let tokens = generator.generate(&[prompt], sampler).unwrap();
    tokens[0].iter().map(|&token| token as u8).collect()
}

#[test]
fn a_text_is_continued_by_the_characters_of_its_tokens() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let model = checkpoint.packed_model(Precision::F32).unwrap();
    // Hot enough for bytes that are no characters.
    for sampling in [Sampling::greedy(), Sampling::at(1.0), Sampling::at(3.0)] {
        let sampler = Sampler::new(sampling.with_seed(5)).unwrap();
        let options = GenerationOptions::default().with_max_new_tokens(90);
        let expected = bytes(&checkpoint, "Anne ", options.clone(), sampler);
        let generator = TextGenerator::new(&checkpoint, &model)
            .unwrap()
            .with_options(options);
        let prompt = generator.prompt("Anne ").unwrap();
        let generation = generator.start(&prompt, sampler).unwrap();
        let pieces: Vec<String> = generation.map(Result::unwrap).collect();
        assert!(pieces.len() > 20);
        assert_eq!(pieces.concat(), String::from_utf8_lossy(&expected));
    }
}

/// Of "é", the first byte alone is no text.
#[test]
fn a_character_comes_with_the_last_of_its_bytes() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let model = checkpoint.packed_model(Precision::F32).unwrap();
    let text = "aé→𝄞\u{fffd}z";
    let mut bytes = text.bytes();
    let n = text.len();
    let next = move |_: &candle_blocks::candle_core::Tensor| Ok(vec![bytes.next().unwrap().into()]);
    let options = GenerationOptions::default().with_max_new_tokens(n);
    let generator = TextGenerator::new(&checkpoint, &model)
        .unwrap()
        .with_options(options);
    let prompt = generator.prompt("x").unwrap();
    let pieces = generator.start(&prompt, next).unwrap().map(Result::unwrap);
    let pieces: Vec<String> = pieces.filter(|piece| !piece.is_empty()).collect();
    assert_eq!(pieces, ["a", "é", "→", "𝄞", "\u{fffd}z"]);
}

#[test]
fn a_text_ends_before_a_stop_string() {
    let Some(checkpoint) = checkpoint() else {
        return;
    };
    let model = checkpoint.packed_model(Precision::F32).unwrap();
    let generator = TextGenerator::new(&checkpoint, &model).unwrap();
    let generator = generator.with_options(GenerationOptions::default().with_max_new_tokens(60));
    let whole = generator
        .generate("Sir Walter ", Sampler::greedy())
        .unwrap();
    let stop: String = whole.chars().skip(20).take(4).collect();
    let expected = &whole[..whole.find(&stop).unwrap()];
    let generator = generator.with_stop_strings(&["never this", &stop]);
    let prompt = generator.prompt("Sir Walter ").unwrap();
    let mut generation = generator.start(&prompt, Sampler::greedy()).unwrap();
    let text: String = generation.by_ref().map(Result::unwrap).collect();
    assert_eq!(text, expected);
    assert_eq!(generation.finish(), Some(Finish::Stopped));
    assert_eq!(generation.tokens().len(), expected.len() + stop.len());
}
