//! Tokens, truncation and texts for small tokenizers with files beside them, compared with transformers.

use std::fs;
use std::path::{Path, PathBuf};

use candle_blocks::text::{ChatTemplate, Tokenizer};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

use crate::weights::weights;

/// Returns a reference file's metadata, each entry parsed.
pub fn reference(path: &Path) -> Vec<(String, Value)> {
    let bytes = fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let said = header["__metadata__"].as_object().unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_string();
    let json = said
        .iter()
        .filter(|(_, value)| text(value).starts_with('{'));
    json.map(|(name, value)| (name.clone(), serde_json::from_str(&text(value)).unwrap()))
        .collect()
}

/// Returns the `tokenizer.json` for each kind.
pub fn kinds() -> Value {
    let all = reference(&weights("reference/tokenizers.safetensors"));
    let found = all.into_iter().find(|(name, _)| name == "kinds");
    found.unwrap().1
}

pub fn numbers(value: &Value) -> Vec<u32> {
    let numbers = value.as_array().unwrap().iter();
    numbers
        .map(|number| number.as_u64().unwrap() as u32)
        .collect()
}

pub fn write(folder: &Path, name: &str, value: &Value) {
    fs::write(folder.join(name), value.to_string()).unwrap();
}

#[test]
fn tokens_and_texts_are_those_of_transformers_for_every_key_and_file() {
    assert!(tokens_and_texts(&weights("reference/tokenizers.safetensors")) > 50);
}

/// `CANDLE_BLOCKS_TOKENIZERS` names another such file, from `weights/sweep/tokenizer_classes.py`.
#[test]
fn tokens_and_texts_are_those_of_transformers_for_every_class_of_tokenizers() {
    let other = std::env::var_os("CANDLE_BLOCKS_TOKENIZERS").map(PathBuf::from);
    let path = other.unwrap_or_else(|| weights("reference/tokenizer_classes.safetensors"));
    assert!(tokens_and_texts(&path) > 50);
}

/// `CANDLE_BLOCKS_VOCABULARIES` names another file of this kind, such as `weights/sweep/vocabulary_files.py` writes.
#[test]
fn a_folder_without_tokenizer_json_is_read_from_the_files_of_its_class() {
    let other = std::env::var_os("CANDLE_BLOCKS_VOCABULARIES").map(PathBuf::from);
    let path = other.unwrap_or_else(|| weights("reference/vocabulary_files.safetensors"));
    assert!(tokens_and_texts(&path) > 20);
}

/// Writes the vocabulary of a kind under these names: the tensors of bytes in a reference file.
pub fn write_vocabulary(folder: &Path, names: &[Value], kind: &str, reference: &Path) {
    let bytes = fs::read(reference).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    for (index, name) in names.iter().enumerate() {
        let content = tensors.tensor(&format!("{kind} {index}")).unwrap();
        fs::write(folder.join(name.as_str().unwrap()), content.data()).unwrap();
    }
}

/// Compares with the cases of a file, and returns how many there are.
pub fn tokens_and_texts(path: &Path) -> usize {
    let reference = reference(path);
    let entry = |name: &str| {
        let found = reference.iter().find(|(key, _)| key == name);
        &found.unwrap().1
    };
    let inputs = entry("inputs");
    let mut wrong = Vec::new();
    let mut n_cases = 0;
    for (name, case) in reference
        .iter()
        .filter(|(_, case)| case.get("kind").is_some())
    {
        let folder = tempfile::tempdir().unwrap();
        let kind = case["kind"].as_str().unwrap();
        match case["vocabulary"].as_array() {
            Some(names) => write_vocabulary(folder.path(), names, kind, path),
            None => write(folder.path(), "tokenizer.json", &entry("kinds")[kind]),
        }
        for (file, value) in case["files"].as_object().unwrap() {
            write(folder.path(), file, value);
        }
        let mut tokenizer = match Tokenizer::open(folder.path()) {
            Ok(tokenizer) => tokenizer,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        if (tokenizer.notes().iter()).any(|note| note.contains("is followed unchanged")) {
            continue;
        }
        n_cases += 1;
        if let Some(named) = case["named"].as_object() {
            let (found, expected) = in_template(folder.path(), &tokenizer, named);
            if found != expected {
                wrong.push(format!("{name}: {found}, expected {expected}"));
            }
        }
        let results = case["results"].as_array().unwrap();
        let mut encoded = Vec::new();
        if case["limit"].is_null() {
            let texts = inputs["texts"].as_array().unwrap().iter();
            let texts = texts.map(|text| text.as_str().unwrap());
            encoded.extend(tokenizer.encode_all(texts).unwrap());
        }
        if let Some(limit) = case["limit"].as_u64() {
            tokenizer.truncate(limit as usize).unwrap();
        }
        if !case["limit"].is_null() || case.get("pairs").is_some() {
            let pairs = inputs["pairs"].as_array().unwrap().iter();
            let text = |pair: &Value, at: usize| pair[at].as_str().unwrap().to_string();
            let pairs = pairs.map(|pair| (text(pair, 0), text(pair, 1)));
            encoded.extend(tokenizer.encode_all(pairs).unwrap());
        }
        assert_eq!(encoded.len(), results.len(), "{name}");
        for (index, (ours, theirs)) in encoded.iter().zip(results).enumerate() {
            let decoded = tokenizer.decode(&ours.ids).unwrap();
            let types = numbers(&theirs[1]);
            let is_same = ours.ids == numbers(&theirs[0])
                && (types.is_empty() || ours.types == types)
                && decoded == theirs[2].as_str().unwrap();
            if !is_same {
                wrong.push(format!(
                    "{name}, input {index}: {ours:?} {decoded:?}, expected {theirs}"
                ));
            }
        }
    }
    let n_wrong = wrong.len();
    let wrong = wrong.join("\n");
    assert!(
        wrong.is_empty(),
        "{n_wrong} inputs of {n_cases} cases:\n{wrong}"
    );
    n_cases
}

/// transformers produces other tokens from `tokenizer.json` then.
#[test]
fn a_class_of_tokenizers_that_is_not_followed_is_named() {
    let reference = reference(&weights("reference/tokenizer_classes.safetensors"));
    let kinds = &reference.iter().find(|(key, _)| key == "kinds").unwrap().1;
    for (class, kind, words) in [
        (
            "BertTokenizer",
            "unigram",
            &["BertTokenizer", "WordPiece", "Unigram"][..],
        ),
        (
            "LlamaTokenizerFast",
            "wordpiece",
            &["LlamaTokenizer", "BPE"],
        ),
        (
            "LukeTokenizer",
            "byte_level",
            &["LukeTokenizer", "may produce other tokens"],
        ),
        ("BertTokenizer", "wordpiece", &[]),
        ("PreTrainedTokenizerFast", "unigram", &[]),
        ("OfNoOneTokenizer", "unigram", &[]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "tokenizer.json", &kinds[kind]);
        let config = json!({"tokenizer_class": class});
        write(folder.path(), "tokenizer_config.json", &config);
        let notes = Tokenizer::open(folder.path()).unwrap().notes();
        assert_eq!(
            notes.len(),
            usize::from(!words.is_empty()),
            "{class}: {notes:?}"
        );
        for word in words {
            assert!(notes[0].contains(word), "{class}: {notes:?}");
        }
    }
}

/// transformers reorders a text with Code Llama's `<FILL_ME>`.
#[test]
fn a_text_that_is_to_be_filled_in_is_refused_by_name() {
    let reference = reference(&weights("reference/tokenizer_classes.safetensors"));
    let kinds = &reference.iter().find(|(key, _)| key == "kinds").unwrap().1;
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "tokenizer.json", &kinds["spaces"]);
    for (class, is_refused) in [("CodeLlamaTokenizer", true), ("LlamaTokenizer", false)] {
        let config = json!({"tokenizer_class": class});
        write(folder.path(), "tokenizer_config.json", &config);
        let tokenizer = Tokenizer::open(folder.path()).unwrap();
        for encoded in [
            tokenizer.encode("a <FILL_ME> b"),
            tokenizer.encode_written("<FILL_ME>"),
        ] {
            match encoded {
                Ok(_) => assert!(!is_refused),
                Err(error) => assert!(is_refused && error.to_string().contains("<FILL_ME>")),
            }
        }
    }
}

#[test]
fn a_malformed_vocabulary_is_refused_by_its_name() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
    for (model_type, files, words) in [
        (
            "bert",
            &[("vocab.txt", pointer)][..],
            &["vocab.txt", "Git LFS"][..],
        ),
        (
            "gpt2",
            &[("vocab.json", "{\"a\": 0}"), ("merges.txt", "a b c\n")],
            &["vocab.json", "line 1"],
        ),
        (
            "gpt2",
            &[("vocab.json", "[]"), ("merges.txt", "")],
            &["vocab.json", "not a vocabulary"],
        ),
        (
            "gpt2",
            &[("vocab.json", "{\"a\": 0}")],
            &["tokenizer.json: missing", "merges.txt"],
        ),
        (
            "t5",
            &[("spiece.model", "\u{a}\u{5}abc")],
            &["spiece.model", "cut short"],
        ),
        (
            "t5",
            &[("spiece.model", "")],
            &["spiece.model", "no SentencePiece pieces"],
        ),
        (
            "bert",
            &[("vocab.txt", "[UNK]\n"), ("tokenizer.model", "")],
            &["tokenizer.json: missing"],
        ),
        (
            "mistral3",
            &[("tekken.json", r#"{"config": {"pattern": "a"}}"#)],
            &["tekken.json", "no special_tokens", "tokenizer.json"],
        ),
        (
            "mistral3",
            &[(
                "tekken.json",
                r#"{"config": {"pattern": "a"}, "special_tokens": [{"rank": 1, "token_str": "a"}]}"#,
            )],
            &["tekken.json", "ranks"],
        ),
        (
            "mistral3",
            &[("tekken.json", pointer)],
            &["tekken.json", "Git LFS"],
        ),
        (
            "mistral3",
            &[("tekken.json", "{}"), ("tokenizer.model", "YQ== 0\n")],
            &["tokenizer.json: missing"],
        ),
        (
            "phi3",
            &[("tokenizer.model", "YQ== 0\nYg==\n")],
            &["tokenizer.model", "not a SentencePiece model"],
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let config = json!({"model_type": model_type});
        write(folder.path(), "config.json", &config);
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let error = Tokenizer::open(folder.path()).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

/// The special tokens that a chat template reads by their names, and those of transformers.
fn in_template(
    folder: &Path,
    tokenizer: &Tokenizer,
    named: &Map<String, Value>,
) -> (String, String) {
    let standard =
        ["bos", "eos", "unk", "sep", "pad", "cls", "mask"].map(|name| format!("{name}_token"));
    let names = standard
        .iter()
        .chain(named.keys().filter(|name| !standard.contains(name)));
    let (mut template, mut expected) = (String::new(), String::new());
    for name in names {
        let token = named.get(name).map_or("", |token| token.as_str().unwrap());
        template.push_str(&format!("{name} {{{{ {name} }}}}|"));
        expected.push_str(&format!("{name} {token}|"));
    }
    fs::write(folder.join("chat_template.jinja"), template).unwrap();
    let template = ChatTemplate::of(tokenizer).unwrap();
    let message = [json!({"role": "user", "content": ""})];
    (template.render(&message, false).unwrap(), expected)
}

#[test]
fn a_pointer_of_git_lfs_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    fs::write(folder.path().join("tokenizer.json"), pointer).unwrap();
    let error = Tokenizer::open(folder.path()).unwrap_err().to_string();
    assert!(
        error.contains("Git LFS pointer") && error.contains("git lfs pull"),
        "{error}"
    );
}

/// The template is the one that text-embeddings-inference has for gte-Qwen2, whose `tokenizer.json` lacks its last token.
#[test]
fn the_code_of_gte_qwen2_ends_each_text_with_a_token_that_its_tokenizer_json_lacks() {
    let read = |name: &str| -> Value {
        serde_json::from_slice(&fs::read(weights("text/last").join(name)).unwrap()).unwrap()
    };
    let mut words = read("tokenizer.json");
    let mut opened = |post_processor: Value, keys: Value| {
        let folder = tempfile::tempdir().unwrap();
        words["post_processor"] = post_processor;
        let mut config = read("tokenizer_config.json");
        let entries = config.as_object_mut().unwrap();
        entries.extend(keys.as_object().unwrap().clone());
        write(folder.path(), "tokenizer.json", &words);
        write(folder.path(), "tokenizer_config.json", &config);
        Tokenizer::open(folder.path()).map_err(|error| error.to_string())
    };
    let piece = |id: &str, kind: u32| json!({"Sequence": {"id": id, "type_id": kind}});
    let end = |kind: u32| json!({"SpecialToken": {"id": "<end>", "type_id": kind}});
    let template = json!({"type": "TemplateProcessing", "single": [piece("A", 0), end(0)],
        "pair": [piece("A", 0), end(0), piece("B", 1), end(1)],
        "special_tokens": {"<end>": {"id": "<end>", "ids": [1], "tokens": ["<end>"]}}});
    let expected = opened(template, json!({})).unwrap();
    let code = json!({"AutoTokenizer": ["tokenization_qwen.Qwen2Tokenizer", "tokenization_qwen.Qwen2TokenizerFast"]});
    let of_code = |said: Value| json!({"auto_map": code, "add_eos_token": said});
    let plain = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let found = opened(plain.clone(), of_code(json!(true))).unwrap();
    for text in ["", "a b", "no such words"] {
        let ids = |tokenizer: &Tokenizer| tokenizer.encode(text).unwrap();
        assert_eq!(ids(&found), ids(&expected), "{text}");
        assert_eq!(ids(&found).ids.last(), Some(&1));
        let pair = |tokenizer: &Tokenizer| tokenizer.encode_all([(text, "c")]).unwrap();
        assert_eq!(pair(&found), pair(&expected), "{text}");
    }
    let without = opened(plain.clone(), of_code(json!(false))).unwrap();
    assert!(!without.encode("a b").unwrap().ids.contains(&1));
    let said = opened(plain, json!({"auto_map": code})).unwrap_err();
    assert!(
        said.contains("add_eos_token") && said.contains("Qwen2TokenizerFast"),
        "{said}"
    );
}
