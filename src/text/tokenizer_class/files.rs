//! Reads a class's own vocabulary files, for folders without `tokenizer.json`: `vocab.txt`, `vocab.json` with `merges.txt`, or a
//! SentencePiece model.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tokenizers::Tokenizer;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::Precompiled;

use super::parts::{filled, further_tokens};
use super::sentence_piece::{Piece, SentencePiece};
use super::{TokenizerClass, name_of, parts_of};
use crate::checkpoint::config_json::ConfigJson;
use crate::checkpoint::files::{is_named, read_limited};
use crate::error::{Error, Result};

/// Ten times the largest published.
const MAX_BYTES: u64 = 100_000_000;

/// Files that transformers takes as any class's vocabulary if there is no `tokenizer.json`.
const OF_ANY_CLASS: [&str; 3] = ["tekken.json", "tokenizer.model", "tiktoken.model"];

impl TokenizerClass {
    /// Returns the class for a folder without `tokenizer.json`, and the paths to its files. Returns `None` if a file is
    /// missing, or the class's files are not read here.
    ///
    /// # Errors
    /// If a key that the class reads has a value of another type.
    pub fn with_files(
        directory: &Path,
        config: Option<&ConfigJson>,
    ) -> Result<Option<(Self, Vec<PathBuf>)>> {
        let name = name_of(directory, config, || false)?;
        let Some(parts) = parts_of(&name) else {
            return Ok(None);
        };
        let files = parts.get("files").and_then(Value::as_array);
        let names: Vec<&str> = files
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let is_there = |name: &str| is_named(&directory.join(name));
        let has_another = OF_ANY_CLASS
            .iter()
            .any(|name| is_there(name) && !names.contains(name));
        if names.is_empty() || has_another || !names.iter().all(|name| is_there(name)) {
            return Ok(None);
        }
        let paths = names.iter().map(|name| directory.join(name)).collect();
        Ok(Some((Self::built(parts, config)?, paths)))
    }

    /// Returns the supported file names, for messages.
    pub fn known_files() -> String {
        "vocab.txt; vocab.json and merges.txt; spiece.model, sentencepiece.bpe.model, spm.model or tokenizer.model".to_string()
    }

    /// Makes the tokenizer's model from the class's own files; [`Self::build`] adds the other parts. Control and user-defined
    /// pieces become special tokens.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if a file is malformed.
    pub fn read_files(
        &mut self,
        paths: &[PathBuf],
        named: &BTreeMap<String, String>,
    ) -> Result<Tokenizer> {
        let Self::Built {
            parts,
            keys,
            of_pieces,
        } = self
        else {
            return Err(failed(&paths[0], "no class has these files"));
        };
        for path in paths {
            let bytes = read_limited(path, MAX_BYTES, "vocabulary")?;
            super::super::tokenizer::check_pointer(path, &bytes)?;
        }
        let kind = parts["model"]["type"].as_str().unwrap_or_default();
        let path = &paths[0];
        let fail = |error: tokenizers::Error| failed(path, error);
        Ok(match (paths, kind) {
            ([words], "WordPiece") => {
                let vocabulary = WordPiece::read_file(&text_of(words)).map_err(fail)?;
                let model = WordPiece::builder().vocab(vocabulary);
                Tokenizer::new(model.build().map_err(fail)?)
            }
            ([words, merges], "BPE") => {
                let read = BPE::read_file(&text_of(words), &text_of(merges));
                let (vocabulary, merges) = read.map_err(fail)?;
                let model = BPE::builder().vocab_and_merges(vocabulary, merges);
                Tokenizer::new(model.build().map_err(fail)?)
            }
            ([path], kind) => {
                let bytes = read_limited(path, MAX_BYTES, "model of SentencePiece")?;
                let file = SentencePiece::read(&bytes).map_err(|reason| failed(path, reason))?;
                *of_pieces = file.added_tokens();
                let pieces = arranged(&file, parts, keys, named);
                let mut tokenizer = match kind {
                    "BPE" => Tokenizer::new(of_pairs(&pieces).map_err(fail)?),
                    _ => Tokenizer::new(likeliest(&file, pieces).map_err(fail)?),
                };
                if !file.charsmap.is_empty() {
                    let map = Precompiled::from(&file.charsmap);
                    let map = map.map_err(|error| failed(path, error))?;
                    tokenizer.with_normalizer(Some(map)).map_err(fail)?;
                }
                tokenizer
            }
            _ => return Err(failed(path, "no class has these files")),
        })
    }
}

/// Returns the pieces in the class's order: transformers' `convert_from_spm`.
fn arranged(
    file: &SentencePiece,
    parts: &Map<String, Value>,
    keys: &BTreeMap<String, Value>,
    named: &BTreeMap<String, String>,
) -> Vec<(String, f64)> {
    let own = |piece: &Piece| (piece.text.clone(), f64::from(piece.score));
    let order = filled(parts.get("pieces").unwrap_or(&Value::Null), keys);
    let tokens = |side: &str| {
        let names = order[side].as_array().into_iter().flatten();
        let names = names.filter_map(Value::as_str);
        names.filter_map(|name| Some((named.get(name)?.clone(), 0.0)))
    };
    let skipped = order["skip"].as_u64().unwrap_or(0) as usize;
    let mut pieces: Vec<(String, f64)> = tokens("before").collect();
    pieces.extend(file.pieces.iter().skip(skipped).map(own));
    if order["special"].as_bool() == Some(true) {
        let mut special = further_tokens(parts, keys);
        if order["reversed"].as_bool() == Some(true) {
            special.reverse();
        }
        pieces.extend(special.into_iter().map(|token| (token, 0.0)));
    }
    pieces.extend(tokens("after"));
    pieces
}

/// Makes a Unigram model.
fn likeliest(file: &SentencePiece, pieces: Vec<(String, f64)>) -> tokenizers::Result<Unigram> {
    Unigram::from(pieces, Some(file.unknown), false)
}

/// Makes a BPE model, with merges in the order in which their pieces are listed: transformers' `generate_merges`.
fn of_pairs(pieces: &[(String, f64)]) -> tokenizers::Result<BPE> {
    let ids: HashMap<&str, u32> = (0..)
        .zip(pieces)
        .map(|(id, (text, _))| (&text[..], id))
        .collect();
    let mut merges = Vec::new();
    for (id, (piece, _)) in (0..).zip(pieces) {
        if ids[&piece[..]] != id {
            continue; // the last of several counts
        }
        for (at, _) in piece.char_indices().skip(1) {
            let (one, other) = piece.split_at(at);
            if ids.contains_key(one) && ids.contains_key(other) {
                merges.push((one.to_string(), other.to_string()));
            }
        }
    }
    let vocabulary: Vocab = ids
        .iter()
        .map(|(text, id)| (text.to_string(), *id))
        .collect();
    BPE::builder().vocab_and_merges(vocabulary, merges).build()
}

fn text_of(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn failed(path: &Path, reason: impl ToString) -> Error {
    Error::Tokenizer {
        path: path.to_path_buf(),
        reason: format!(
            "not a vocabulary of its class: {}; download it again",
            reason.to_string()
        ),
    }
}
