//! Files beside config.json and the weights: saving a checkpoint copies those that change results, and a directory that is
//! replaced keeps them.

use std::fs;
use std::path::Path;

use candle_blocks::candle_core::Tensor;
use candle_blocks::checkpoint::{ExistingFiles, Quantization};
use candle_blocks::{Checkpoint, SaveOptions, Weights};

use crate::weights::weights;

const UNCHANGED: [(String, Tensor); 0] = [];

/// Files that transformers, its trainer and sentence-transformers write beside a checkpoint.
const OF_THE_MODEL: [&str; 9] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "chat_template.jinja",
    "preprocessor_config.json",
    "modules.json",
    "1_Pooling/config.json",
];
const ABOUT_IT: [&str; 3] = [
    "README.md",
    "training_args.bin",
    "additional_chat_templates/tool.jinja",
];

fn write(folder: &Path, names: &[&str], text: &str) {
    for name in names {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text} {name}")).unwrap();
    }
}

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap_or_default()
}

/// A checkpoint as transformers leaves it.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(weights("tiny-bert").join(name), folder.path().join(name)).unwrap();
    }
    write(folder.path(), &OF_THE_MODEL, "of");
    write(folder.path(), &ABOUT_IT, "about");
    folder
}

#[test]
fn files_that_a_model_needs_are_copied_and_its_card_is_not() {
    let from = folder();
    fs::write(from.path().join("notes.txt"), "mine").unwrap();
    let checkpoint = Checkpoint::open(from.path()).unwrap();
    let to = tempfile::tempdir().unwrap();
    let saved = to.path().join("saved");
    checkpoint.save(&saved, UNCHANGED).unwrap();
    let packed = to.path().join("packed");
    let kind = Quantization::CompressedTensors {
        bits: 4,
        group_size: 32,
    };
    // Rows of 20 are no whole groups.
    let refused =
        SaveOptions::default().save_quantized(&checkpoint, kind, &packed, UNCHANGED, |_| Ok(()));
    assert!(refused.is_err() && !packed.exists());
    for name in OF_THE_MODEL {
        assert_eq!(read(&saved, name), format!("of {name}"));
    }
    for name in [
        "README.md",
        "training_args.bin",
        "additional_chat_templates",
        "notes.txt",
    ] {
        assert!(!saved.join(name).exists(), "{name}");
    }
    Checkpoint::open(&saved).unwrap();
}

#[test]
fn the_directory_that_a_checkpoint_came_from_is_replaced_with_all_that_it_has() {
    let from = folder();
    let checkpoint = Checkpoint::open(from.path()).unwrap();
    let replace = SaveOptions::default().existing(ExistingFiles::Replace);
    replace.save(&checkpoint, from.path(), UNCHANGED).unwrap();
    replace.save(&checkpoint, from.path(), UNCHANGED).unwrap();
    for name in OF_THE_MODEL {
        assert_eq!(read(from.path(), name), format!("of {name}"));
    }
    for name in ABOUT_IT {
        assert_eq!(read(from.path(), name), format!("about {name}"));
    }
    Checkpoint::open(from.path())
        .unwrap()
        .load(Weights::Dense(
            candle_blocks::candle_core::DType::F32,
            &candle_blocks::candle_core::Device::Cpu,
        ))
        .stack()
        .unwrap();
}

#[test]
fn another_checkpoints_directory_keeps_what_the_new_one_does_not_have() {
    let (old, new) = (folder(), folder());
    write(
        new.path(),
        &["tokenizer.json", "1_Pooling/config.json"],
        "new",
    );
    fs::remove_file(new.path().join("vocab.txt")).unwrap();
    let checkpoint = Checkpoint::open(new.path()).unwrap();
    let replace = SaveOptions::default().existing(ExistingFiles::Replace);
    replace.save(&checkpoint, old.path(), UNCHANGED).unwrap();
    for (name, expected) in [
        ("tokenizer.json", "new tokenizer.json"),
        ("1_Pooling/config.json", "new 1_Pooling/config.json"),
        ("vocab.txt", "of vocab.txt"),
        ("README.md", "about README.md"),
    ] {
        assert_eq!(read(old.path(), name), expected);
    }
}

#[test]
fn files_that_do_not_belong_to_a_checkpoint_are_never_replaced() {
    for name in [
        "notes.txt",
        "pytorch_model.bin",
        "optimizer.pt",
        "tokenizer.json/of_mine",
        "src/main.rs",
        "_x/config.json",
    ] {
        let folder = folder();
        let first = folder.path().join(name.split('/').next().unwrap());
        let _ = fs::remove_file(first);
        write(folder.path(), &[name], "mine");
        let checkpoint = Checkpoint::open(folder.path()).unwrap();
        let replace = SaveOptions::default().existing(ExistingFiles::Replace);
        let error = replace
            .save(&checkpoint, folder.path(), UNCHANGED)
            .unwrap_err();
        let first = name.split('/').next().unwrap();
        assert!(error.to_string().contains(first), "{error}");
        assert_eq!(read(folder.path(), name), format!("mine {name}"));
    }
}
