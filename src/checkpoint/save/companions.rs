//! Other files of a checkpoint beside `config.json` and the weights: tokenizers and processors, generation settings, and the
//! model card. Saving does not write them; it copies or keeps them.

use std::fs;
use std::path::Path;

use crate::error::{Error, Result};

/// Files that change a model's results: without them, a decoder would not know its end-of-text token.
const OF_THE_MODEL: [&str; 21] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "tekken.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "bpe.codes",
    "dict.txt",
    "normalizer.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
];

/// Files that say how sentence-transformers makes vectors of a model's results.
const OF_VECTORS: [&str; 3] = [
    "modules.json",
    "sentence_bert_config.json",
    "config_sentence_transformers.json",
];

/// Files about a checkpoint. They do not apply to a copy with other weights, but stay in place.
const ABOUT_IT: [&str; 8] = [
    "README.md",
    "LICENSE",
    "LICENSE.md",
    "LICENSE.txt",
    "NOTICE",
    ".gitattributes",
    "training_args.bin",
    "additional_chat_templates",
];

/// Returns whether a file or folder belongs to the model itself. The modules of sentence-transformers are in numbered
/// folders.
fn is_of_the_model(name: &str, path: &Path) -> bool {
    let is_module = || {
        let (number, rest) = name.split_once('_').unwrap_or_default();
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        is_number && !rest.is_empty()
    };
    match path.is_dir() {
        true => is_module(),
        false => path.is_file() && (OF_THE_MODEL.contains(&name) || OF_VECTORS.contains(&name)),
    }
}

/// Returns whether a directory's entry belongs to a checkpoint, so that replacing the checkpoint keeps it.
pub(super) fn is_companion(name: &str, path: &Path) -> bool {
    is_of_the_model(name, path)
        || ABOUT_IT.contains(&name) && (path.is_file() || name == "additional_chat_templates")
}

/// Copies the model's other files from a checkpoint's directory.
///
/// # Errors
/// If a file cannot be read or written.
pub(super) fn copy_of_the_model(from: &Path, to: &Path) -> Result<()> {
    copy(from, to, is_of_the_model)
}

/// Copies the model's tokenizer and processor from a checkpoint's directory, to one that has another head.
///
/// # Errors
/// If a file cannot be read or written.
pub(super) fn copy_of_the_input(from: &Path, to: &Path) -> Result<()> {
    copy(from, to, |name, path| {
        path.is_file() && OF_THE_MODEL.contains(&name)
    })
}

/// Copies a checkpoint's other files from a directory that is about to be replaced, except those that the new one has.
///
/// # Errors
/// If a file cannot be read or written.
pub(super) fn keep(from: &Path, to: &Path) -> Result<()> {
    copy(from, to, is_companion)
}

fn copy(from: &Path, to: &Path, is_wanted: fn(&str, &Path) -> bool) -> Result<()> {
    let from = match from == Path::new("") {
        true => Path::new("."),
        false => from,
    };
    let failed = |source| Error::io(from, "list", source);
    for entry in fs::read_dir(from).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, name) = (entry.path(), entry.file_name());
        let target = to.join(&name);
        if !is_wanted(&name.to_string_lossy(), &path) || target.exists() {
            continue;
        }
        match path.is_dir() {
            false => copy_file(&path, &target)?,
            true => {
                fs::create_dir(&target).map_err(|source| Error::io(&target, "create", source))?;
                copy(&path, &target, |_, path| path.is_file())?;
            }
        }
    }
    Ok(())
}

/// Copies a file's content, without its permissions, so that a copy of a read-only file can be replaced again.
fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let bytes = fs::read(from).map_err(|source| Error::io(from, "read", source))?;
    super::write_file(to, &bytes)
}
