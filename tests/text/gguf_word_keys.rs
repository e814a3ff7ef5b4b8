//! Keys for tokenizers and sampling in a GGUF file. `weights/sweep/gguf_tokenizer_keys.py` compares all of them with llama.cpp.

use std::fs;
use std::path::PathBuf;

use candle_blocks::checkpoint::FilesBeside;
use candle_blocks::generate::GenerationOptions;
use candle_blocks::text::Tokenizer;
use candle_blocks::{Checkpoint, CheckpointOptions};
use tempfile::TempDir;

use crate::gguf_file::{flag, number, text, whole, with_keys, without_key};
use crate::weights::{is_present, weights};

/// Writes a changed file to a folder.
fn written(bytes: Vec<u8>) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    fs::write(&path, bytes).unwrap();
    (folder, path)
}

#[test]
fn sampling_settings_that_generation_does_not_follow_are_named() {
    if !is_present("gguf-chat") {
        return;
    }
    let bytes = fs::read(weights("gguf-chat/model.gguf")).unwrap();
    let keys = [
        ("general.sampling.temp", number(0.5)),
        ("general.sampling.mirostat", whole(2)),
        ("general.sampling.xtc_probability", number(0.25)),
    ];
    let (_folder, path) = written(with_keys(bytes.clone(), &keys));
    let options = GenerationOptions::of(&Checkpoint::open(path).unwrap()).unwrap();
    assert_eq!(options.sampling.temperature, 0.5);
    let [note] = &options.notes[..] else {
        panic!("{:?}", options.notes);
    };
    let named = [
        "general.sampling.mirostat",
        "general.sampling.xtc_probability",
    ];
    assert!(named.into_iter().all(|key| note.contains(key)), "{note}");
    assert!(
        !note.contains("temp,") && note.contains("model.gguf"),
        "{note}"
    );
    let (_folder, path) = written(bytes);
    let options = GenerationOptions::of(&Checkpoint::open(path).unwrap()).unwrap();
    assert_eq!(options.notes, Vec::<String>::new());
}

#[test]
fn sentence_pieces_need_the_types_of_their_tokens() {
    if !is_present("gguf-words") {
        return;
    }
    let bytes = fs::read(weights("gguf-words/scores/words.gguf")).unwrap();
    let (_folder, path) = written(without_key(bytes, "tokenizer.ggml.token_type"));
    let said = Tokenizer::open(&path).unwrap_err().to_string();
    assert!(
        said.contains("\"tokenizer.ggml.token_type\": is missing"),
        "{said}"
    );
}

#[test]
fn keys_that_tokenizers_do_not_follow_are_refused() {
    if !is_present("gguf-words") {
        return;
    }
    for (name, key, value) in [
        ("unigram", "tokenizer.ggml.add_space_prefix", flag(false)),
        ("unigram", "tokenizer.ggml.unknown_token_id", whole(127)),
        ("unigram", "tokenizer.ggml.model", text("bert")),
        ("pieces", "tokenizer.ggml.unknown_token_id", whole(20)),
    ] {
        let bytes = fs::read(weights(&format!("gguf-words/{name}/words.gguf"))).unwrap();
        let (_folder, path) = written(with_keys(bytes, &[(key, value)]));
        let said = Tokenizer::open(&path).unwrap_err().to_string();
        assert!(said.contains(&format!("{key:?}")), "{said}");
    }
}

#[test]
fn two_texts_are_joined_as_llama_cpp_s_server_joins_them() {
    if !is_present("gguf-words") {
        return;
    }
    let bytes = fs::read(weights("gguf-words/unigram/words.gguf")).unwrap();
    let joined = |is_separated: bool| {
        let keys = [
            ("tokenizer.ggml.add_bos_token", flag(true)),
            ("tokenizer.ggml.bos_token_id", whole(0)),
            ("tokenizer.ggml.seperator_token_id", whole(1)),
            ("tokenizer.ggml.add_sep_token", flag(is_separated)),
        ];
        let (_folder, path) = written(with_keys(bytes.clone(), &keys));
        let tokenizer = Tokenizer::open(&path).unwrap();
        let [one, other] = ["The tide", "left"].map(|text| tokenizer.encode(text).unwrap().ids);
        let pair = tokenizer
            .encode_all([("The tide", "left")])
            .unwrap()
            .remove(0)
            .ids;
        (one, other[1..].to_vec(), pair)
    };
    // `<s> one </s> </s> other </s>`, as XLM-R's.
    let (one, other, pair) = joined(true);
    assert_eq!(pair, [&one[..], &[1], &other].concat());
    // llama.cpp's server begins the second text with nothing.
    let (one, other, pair) = joined(false);
    assert_eq!(pair, [&one[..], &other].concat());
}

#[test]
fn a_text_for_bert_begins_with_the_token_that_llama_cpp_reads() {
    if !is_present("gguf-pooling") {
        return;
    }
    let bytes = fs::read(weights("gguf-pooling/bert.gguf")).unwrap();
    let (_folder, path) = written(with_keys(
        bytes,
        &[("tokenizer.ggml.cls_token_id", whole(7))],
    ));
    let ids = Tokenizer::open(&path).unwrap().encode("ab").unwrap().ids;
    // The file's bos_token_id.
    assert_eq!(ids[0], 2);
}

/// llama.cpp prints a warning for such a file: "GENERATION QUALITY WILL BE DEGRADED".
#[test]
fn a_byte_level_file_without_the_name_of_its_pre_tokenizer_is_noted() {
    if !is_present("gguf-words") || !is_present("gguf-chat") {
        return;
    }
    const KEY: &str = "tokenizer.ggml.pre";
    let source = weights("gguf-words/pairs");
    let bytes = fs::read(source.join("words.gguf")).unwrap();
    let notes = |bytes: Vec<u8>| {
        let (_folder, path) = written(bytes);
        Tokenizer::open(&path).unwrap().notes()
    };
    assert_eq!(notes(bytes.clone()), Vec::<String>::new());
    for without in [
        without_key(bytes.clone(), KEY),
        with_keys(bytes, &[(KEY, text(""))]),
    ] {
        let [note] = &notes(without)[..] else {
            panic!("expected one note");
        };
        assert!(
            note.contains("tokenizer.ggml.pre is missing") && note.contains("--files-beside"),
            "{note}"
        );
    }
    // Other kinds have no such key.
    for kind in ["pieces", "scores", "unigram"] {
        let bytes = fs::read(weights(&format!("gguf-words/{kind}/words.gguf"))).unwrap();
        assert_eq!(
            notes(without_key(with_keys(bytes, &[(KEY, text("x"))]), KEY)),
            Vec::<String>::new()
        );
    }
    // What the note advises.
    let model = fs::read(weights("gguf-chat/model.gguf")).unwrap();
    let (folder, path) = written(without_key(model, KEY));
    let json = "tokenizer.json";
    fs::copy(source.join(json), folder.path().join(json)).unwrap();
    let own = Tokenizer::open(source).unwrap();
    let checkpoint = CheckpointOptions::default()
        .beside(FilesBeside::First)
        .open(path);
    let beside = Tokenizer::of(&checkpoint.unwrap()).unwrap();
    assert_eq!(beside.notes(), Vec::<String>::new());
    let said = "it's 12345\n\n678";
    assert_eq!(beside.encode(said).unwrap(), own.encode(said).unwrap());
}
