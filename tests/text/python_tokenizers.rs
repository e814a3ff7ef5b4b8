//! Tokenizers that transformers writes in Python, and folders whose class reads no `tokenizer.json`.

use std::fs;
use std::path::Path;

use candle_blocks::Precision;
use candle_blocks::candle_core::{Device, Tensor};
use candle_blocks::model::ModelInput;
use candle_blocks::text::Tokenizer;
use candle_blocks::{Checkpoint, Weights};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::folder::{changed, merge};
use crate::tokenizers::{kinds, numbers, reference, tokens_and_texts, write, write_vocabulary};
use crate::weights::weights;

const FILES: [&str; 2] = ["vocab.txt", "bpe.codes"];

/// Returns a folder with PhoBERT's files and these keys in `tokenizer_config.json`.
fn words(keys: Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let names = FILES.map(Value::from);
    let path = weights("reference/python_tokenizers.safetensors");
    write_vocabulary(folder.path(), &names, "counted", &path);
    write(folder.path(), "tokenizer_config.json", &keys);
    folder
}

fn refusal(folder: &Path) -> String {
    Tokenizer::open(folder).unwrap_err().to_string()
}

#[test]
fn tokens_of_classes_in_python_are_those_of_transformers() {
    assert!(tokens_and_texts(&weights("reference/python_tokenizers.safetensors")) > 30);
}

/// transformers builds the tokenizer from the class's own files.
#[test]
fn a_tokenizer_json_beside_a_class_in_python_is_not_read() {
    let alone = words(json!({"tokenizer_class": "PhobertTokenizer"}));
    let beside = words(json!({"tokenizer_class": "PhobertTokenizer"}));
    let mut file = kinds()["byte_level"].clone();
    file["added_tokens"] = json!([]);
    write(beside.path(), "tokenizer.json", &file);
    let [alone, beside] = [&alone, &beside].map(|folder| Tokenizer::open(folder.path()).unwrap());
    assert_eq!(beside.notes(), Vec::<String>::new());
    let encoded = |tokenizer: &Tokenizer| tokenizer.encode("xin chào các bạn").unwrap();
    assert_eq!(encoded(&beside), encoded(&alone));
    // transformers takes its added tokens, also for ByT5: the class's own first tokens then come after all bytes.
    let folder = tempfile::tempdir().unwrap();
    let added = |id: u32, text: &str| {
        json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true})
    };
    file["added_tokens"] = json!([added(0, "[PAD]"), added(1, "[UNK]"), added(3, "[SEP]")]);
    write(folder.path(), "tokenizer.json", &file);
    write(
        folder.path(),
        "tokenizer_config.json",
        &json!({"tokenizer_class": "ByT5Tokenizer"}),
    );
    let byt5 = Tokenizer::open(folder.path()).unwrap();
    assert_eq!(byt5.encode("a[SEP]").unwrap().ids, [100, 3, 259]);
    byt5.check_vocabulary(384).unwrap();
    // Without the merges transformers has no tokenizer; the file is followed, and the note says so.
    let folder = words(json!({"tokenizer_class": "PhobertTokenizer"}));
    write(folder.path(), "tokenizer.json", &kinds()["byte_level"]);
    fs::remove_file(folder.path().join("bpe.codes")).unwrap();
    let notes = Tokenizer::open(folder.path()).unwrap().notes();
    assert!(
        ["PhobertTokenizer", "vocab.txt and bpe.codes"]
            .iter()
            .all(|word| notes[0].contains(word)),
        "{notes:?}"
    );
}

/// `python weights/sweep/tokenizer_lists.py --check` compares the list with transformers' sources.
#[test]
fn a_tokenizer_json_beside_every_other_class_of_transformers_is_followed_with_a_note() {
    let list = candle_blocks_tokenizers::TYPES_OF_CLASSES;
    let of = |name: &str| -> Vec<&str> {
        let line = list.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().split_whitespace().collect()
    };
    let read = [
        "EsmTokenizer",
        "ByT5Tokenizer",
        "PhobertTokenizer",
        "BertweetTokenizer",
    ];
    let classes = of("in Python:");
    assert!(classes.len() > 35 && read.iter().all(|class| classes.contains(class)));
    let others = classes.iter().filter(|class| !read.contains(class));
    for class in others.chain(&["MLukeTokenizer", "CpmTokenizerFast", "LukeTokenizer"]) {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), "tokenizer.json", &kinds()["byte_level"]);
        write(
            folder.path(),
            "tokenizer_config.json",
            &json!({"tokenizer_class": class}),
        );
        let notes = Tokenizer::open(folder.path()).unwrap().notes();
        let name = class.trim_end_matches("Fast");
        assert!(
            notes.len() == 1 && notes[0].contains(name),
            "{class}: {notes:?}"
        );
    }
    assert!(of("without a type:").contains(&"HerbertTokenizer"));
}

#[test]
fn a_folder_without_tokenizer_json_is_refused_with_a_cure_that_its_class_has() {
    for (class, files, words, not) in [
        (
            "BertJapaneseTokenizer",
            &["vocab.txt"][..],
            &["BertJapaneseTokenizer", "run --input", "ModelInput::tokens"][..],
            "save_pretrained",
        ),
        (
            "MarianTokenizer",
            &[],
            &["MarianTokenizer", "run --input"],
            "save_pretrained",
        ),
        (
            "CpmTokenizerFast",
            &[],
            &["CpmTokenizer", "run --input"],
            "save_pretrained",
        ),
        (
            "PhobertTokenizer",
            &["vocab.txt"],
            &["PhobertTokenizer", "bpe.codes"],
            "save_pretrained",
        ),
        (
            "EsmTokenizer",
            &[],
            &["EsmTokenizer", "vocab.txt"],
            "save_pretrained",
        ),
        (
            "BertTokenizer",
            &["merges.txt"],
            &["BertTokenizer", "vocab.txt"],
            "save_pretrained",
        ),
        (
            "LukeTokenizer",
            &["vocab.json"],
            &["LukeTokenizer", "save_pretrained"],
            "run --input",
        ),
        (
            "TokenizersBackend",
            &[],
            &["tekken.json", "save_pretrained"],
            "run --input",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        write(
            folder.path(),
            "tokenizer_config.json",
            &json!({"tokenizer_class": class}),
        );
        for file in files {
            fs::write(folder.path().join(file), "a\n").unwrap();
        }
        let said = refusal(folder.path());
        let has_all = words.iter().all(|word| said.contains(word));
        assert!(has_all && !said.contains(not), "{class}: {said}");
    }
}

/// The cure in the refusal of a class in Python that is not read.
#[test]
fn token_ids_run_a_model_whose_tokenizer_is_not_read() {
    let folder = changed("joined", |folder| {
        fs::remove_file(folder.join("tokenizer.json")).unwrap();
        let class = json!({"tokenizer_class": "BertJapaneseTokenizer"});
        merge(&folder.join("tokenizer_config.json"), &class);
    });
    assert!(refusal(folder.path()).contains("ModelInput::tokens"));
    let ids = Tensor::new(&[[2u32, 5, 6, 3]], &Device::Cpu).unwrap();
    let [changed, whole] = [folder.path(), &weights("text/joined")].map(|folder| {
        let model = Checkpoint::open(folder).unwrap();
        let model = model.load(Weights::Packed(Precision::F32)).model().unwrap();
        let output = model.forward(&ModelInput::tokens(&ids)).unwrap();
        output.last_hidden_state.to_vec3::<f32>().unwrap()
    });
    assert_eq!(changed, whole);
}

#[test]
fn bertweet_is_refused_where_it_rewrites_tweets_and_reads_texts_that_are_rewritten() {
    let class = |normalization: bool| json!({"tokenizer_class": "BertweetTokenizer", "normalization": normalization});
    let said = refusal(words(class(true)).path());
    assert!(
        ["normalization", "normalizeTweet", "set it to false"]
            .iter()
            .all(|word| said.contains(word)),
        "{said}"
    );
    let tokenizer = Tokenizer::open(words(class(false)).path()).unwrap();
    let reference = reference(&weights("reference/python_tokenizers.safetensors"));
    let (_, tweets) = reference
        .iter()
        .find(|(name, _)| name == "normalized")
        .unwrap();
    for tweet in tweets["tweets"].as_array().unwrap() {
        let text = tweet[1].as_str().unwrap();
        assert_eq!(
            tokenizer.encode(text).unwrap().ids,
            numbers(&tweet[2]),
            "{text}"
        );
    }
}

#[test]
fn a_malformed_vocabulary_of_a_class_in_python_is_refused_by_its_name() {
    for (file, content, words) in [
        (
            "vocab.txt",
            &b"a 1\nb\n"[..],
            ["vocab.txt", "line 2", "count"],
        ),
        (
            "vocab.txt",
            b"version https://git-lfs.github.com/spec/v1\n",
            ["vocab.txt", "Git LFS", "pointer"],
        ),
        (
            "bpe.codes",
            b"a \xff 1\n",
            ["bpe.codes", "utf-8", "vocabulary"],
        ),
    ] {
        let folder = self::words(json!({"tokenizer_class": "PhobertTokenizer"}));
        fs::write(folder.path().join(file), content).unwrap();
        let said = refusal(folder.path());
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
}

/// ByT5 has no file, and a byte may be a part of a character.
#[test]
fn byt5_reads_and_writes_bytes() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        "config.json",
        &json!({"model_type": "t5", "tokenizer_class": "ByT5Tokenizer"}),
    );
    let tokenizer = Tokenizer::open(folder.path()).unwrap();
    let ids = tokenizer.encode("é</s>").unwrap().ids;
    assert_eq!(ids, [0xc3 + 3, 0xa9 + 3, 1]);
    assert_eq!(tokenizer.decode(&ids[..1]).unwrap(), "");
    tokenizer.check_vocabulary(384).unwrap(); // the rows of the published models
    assert_eq!(tokenizer.decode(&[&ids[..], &[259]].concat()).unwrap(), "é");
    let stop = tokenizer.stop_strings(&["é".to_string()]).unwrap();
    assert!(stop.are_completed(&ids[..2]) && !stop.are_completed(&ids[..1]));
}
