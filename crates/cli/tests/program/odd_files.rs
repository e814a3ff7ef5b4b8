//! Paths under a checkpoint file's name that are not files are errors that name the path: the program does not wait for a
//! pipe or read a device to its end, and a broken link does not count as a missing file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use crate::scratch::{Scratch, answer, program};
use crate::weights::{is_present, weights};

/// A kind of path, and a function that creates it.
type Odd = (&'static str, fn(&Path));

const ODD: [Odd; 5] = [
    ("pipe", |path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }),
    ("device", |path| symlink("/dev/zero", path).unwrap()),
    ("directory", |path| fs::create_dir(path).unwrap()),
    ("loop", |path| {
        symlink(path.file_name().unwrap(), path).unwrap()
    }),
    ("dangling link", |path| symlink("nowhere", path).unwrap()),
];

/// Asserts for each that the command refuses it by name.
fn assert_named(model: &str, files: &[&str], command: &[&str]) {
    if !is_present(model) {
        return;
    }
    for file in files {
        for (kind, put) in ODD {
            let folder = tempfile::tempdir().unwrap();
            let to = folder.path();
            for entry in fs::read_dir(weights(model)).unwrap() {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap();
                if path.is_file() && name != "results.safetensors" && name != *file {
                    fs::copy(&path, to.join(name)).unwrap();
                }
            }
            put(&to.join(file));
            fs::write(to.join("texts"), "the tide\tboats\n").unwrap();
            let mut program = program();
            program.args(command).arg("--model").arg(to).current_dir(to);
            let said = answer(&mut program);
            assert_eq!(said.status, Some(2), "{kind} {file}: {said:?}");
            assert!(said.stderr.contains(file), "{kind} {file}: {said:?}");
        }
    }
}

#[test]
fn whatever_is_no_file_of_a_reader_of_texts_is_named() {
    let files = [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "quantize_config.json",
        "adapter_config.json",
    ];
    assert_named("text/ranker", &files, &["classify", "--pairs", "texts"]);
    let files = ["modules.json", "config_sentence_transformers.json"];
    let embed = ["embed", "texts", "--output", "vectors.jsonl"];
    assert_named("text/joined", &files, &embed);
}

#[test]
fn whatever_is_no_file_of_a_generator_is_named() {
    let files = ["generation_config.json", "config.json", "tokenizer.json"];
    let command = ["generate", "--prompt", "a", "--max-new-tokens", "2"];
    assert_named("tiny-gpt-text", &files, &command);
    let chat = [&command[..], &["--chat"]].concat();
    assert_named("tiny-gpt-text", &["chat_template.jinja"], &chat);
}

#[test]
fn names_of_a_module_that_pytorch_wrapped_are_refused_with_the_cure() {
    for (prefix, cure) in [
        ("module.", "model.module.state_dict()"),
        ("_orig_mod.", "model._orig_mod.state_dict()"),
    ] {
        let scratch = Scratch::of("tiny-bert");
        scratch.change_weights(|tensors| {
            let renamed = std::mem::take(tensors).into_iter();
            let renamed = renamed.map(|(name, tensor)| (format!("{prefix}{name}"), tensor));
            *tensors = renamed.collect();
        });
        scratch.run(&[]).assert_refused(&[prefix, cure]);
    }
}
