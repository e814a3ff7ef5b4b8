//! Reads a class's own vocabulary files, for folders without `tokenizer.json`: `vocab.txt`, `vocab.json` with `merges.txt`, or a
//! SentencePiece model. A tiktoken file and Mistral's `tekken.json` have no class.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use serde_json::{Map, Value};
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::models::unigram::Unigram;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::Precompiled;
use tokenizers::{AddedToken, Tokenizer};

use super::added_tokens::AddedTokens;
use super::byte_pairs::{BytePairs, MOST};
use super::git_lfs::check_pointer;
use super::parts::{each, filled, further_tokens};
use super::sentence_piece::{Piece, SentencePiece};
use super::{NONE, PYTHON, PythonTokens, TokenizerClass, name_of, parts_of};
use candle_blocks_base::{Error, Result};
use candle_blocks_files::config_json::ConfigJson;
use candle_blocks_files::tensors::{is_named, read_limited};

/// Ten times the largest published.
const MAX_BYTES: u64 = 100_000_000;

/// Files that transformers takes as any class's vocabulary if there is no `tokenizer.json`.
const OF_ANY_CLASS: [&str; 3] = ["tekken.json", "tokenizer.model", "tiktoken.model"];

/// Classes that transformers builds from one of these files, if they have no own.
const OF_NO_CLASS: [&str; 4] = [
    NONE,
    "TokenizersBackend",
    "MistralCommonBackend",
    "PreTrainedTokenizer",
];

/// The parts for such a file, by its form.
static FORMS: LazyLock<Map<String, Value>> = LazyLock::new(|| {
    let forms = serde_json::from_str(include_str!("forms.json"));
    forms.unwrap_or_default() // a test checks this
});

/// A vocabulary that is no `tokenizer.json`.
pub(crate) struct VocabularyFile {
    /// The path of the file, or of the first one.
    pub path: PathBuf,
    content: Content,
}

enum Content {
    Words,
    /// A token in each line (ESM).
    Lines,
    /// Words and their counts, with the path to the merges (PhoBERT).
    Counts(PathBuf),
    /// Every byte; there is no file (ByT5).
    Bytes,
    /// The path of the merges.
    Pairs(PathBuf),
    Pieces(SentencePiece),
    BytePairs(BytePairs),
}

impl VocabularyFile {
    fn pieces(path: PathBuf) -> Result<Self> {
        let file = SentencePiece::read(&read(&path)?).map_err(|reason| failed(&path, reason))?;
        Ok(Self {
            path,
            content: Content::Pieces(file),
        })
    }

    /// Reads a file that is not of a class: `tekken.json`, a tiktoken file or a model of SentencePiece.
    fn of_no_class(path: PathBuf) -> Result<Self> {
        let bytes = read(&path)?;
        let is_tekken = path.extension().is_some_and(|end| end == "json");
        let content = match BytePairs::tiktoken(&bytes) {
            Some(file) => file,
            None if is_tekken => {
                BytePairs::tekken(&bytes).map_err(|reason| failed(&path, reason))?
            }
            None => return Self::pieces(path),
        };
        Ok(Self {
            path,
            content: Content::BytePairs(content),
        })
    }
}

impl TokenizerClass {
    /// Returns the class for a folder without `tokenizer.json`, and its vocabulary. Returns `None` if a file is missing, or the
    /// class's files are not read here.
    ///
    /// # Errors
    /// If a key that the class reads has a value of another type, or a file is malformed.
    pub fn with_files(
        directory: &Path,
        config: Option<&ConfigJson>,
    ) -> Result<Option<(Self, VocabularyFile)>> {
        let name = name_of(directory, config, || false)?;
        let is_there = |name: &&str| is_named(&directory.join(name));
        let shared_files: Vec<&str> = OF_ANY_CLASS.into_iter().filter(is_there).collect();
        let Some(parts) = parts_of(&name) else {
            let is_said = config.is_some() || is_named(&directory.join("config.json"));
            return match shared_files[..] {
                [file] if is_said && OF_NO_CLASS.contains(&&name[..]) => {
                    let file = VocabularyFile::of_no_class(directory.join(file))?;
                    Ok(Some((Self::of_form(&file.content), file)))
                }
                _ => Ok(None),
            };
        };
        if !are_there(directory, &parts) {
            return Ok(None);
        }
        let names = names(&parts);
        let python = parts.get(PYTHON).and_then(Value::as_str);
        let file = match (python, &names[..]) {
            (python, [words, merges]) => {
                let (path, merges) = (directory.join(words), directory.join(merges));
                read(&path)?;
                read(&merges)?;
                let content = match python {
                    Some(_) => Content::Counts(merges),
                    None => Content::Pairs(merges),
                };
                VocabularyFile { path, content }
            }
            (python, ["vocab.txt"]) => {
                let path = directory.join("vocab.txt");
                read(&path)?;
                let content = match python {
                    Some(_) => Content::Lines,
                    None => Content::Words,
                };
                VocabularyFile { path, content }
            }
            (_, [pieces]) => VocabularyFile::pieces(directory.join(pieces))?,
            (Some("bytes"), []) => VocabularyFile {
                path: directory.join("tokenizer_config.json"),
                content: Content::Bytes,
            },
            _ => return Ok(None),
        };
        Ok(Some((Self::built(parts, config)?, file)))
    }

    /// Returns the parts that transformers' `TokenizersBackend` gives a file's tokenizer.
    fn of_form(content: &Content) -> Self {
        let (form, kind) = match content {
            Content::Pieces(file) if file.is_unigram => ("SentencePiece", "Unigram"),
            Content::Pieces(_) => ("SentencePiece", "BPE"),
            _ => ("byte pairs", "BPE"),
        };
        let parts = FORMS.get(form).and_then(Value::as_object);
        let mut parts = parts.cloned().unwrap_or_default();
        let mut keys = BTreeMap::new();
        parts["model"]["type"] = kind.into();
        match content {
            Content::Pieces(file) => {
                let names = ["unk_token", "bos_token", "eos_token"];
                let named = names.into_iter().zip(&file.named);
                let named =
                    named.filter_map(|(name, text)| Some((name.into(), text.clone()?.into())));
                parts.insert("tokens".to_string(), Value::Object(named.collect()));
                let unknown = file.named[0].as_deref().unwrap_or("<unk>");
                keys.insert("unk_piece".to_string(), unknown.into());
                keys.insert("unk_id".to_string(), file.unknown.into());
                keys.insert("byte_fallback".to_string(), file.byte_fallback.into());
            }
            Content::BytePairs(file) => {
                keys.insert("pattern".to_string(), file.pattern.clone().into());
            }
            _ => {}
        }
        Self::Built {
            parts,
            keys,
            of_pieces: None,
        }
    }

    /// Returns the supported file names, for messages.
    pub fn known_files() -> String {
        "vocab.txt; vocab.json and merges.txt; spiece.model, sentencepiece.bpe.model, sentencepiece.model, spm.model or \
         tokenizer.model; tekken.json or tiktoken.model"
            .to_string()
    }

    /// Makes the tokenizer's model from a vocabulary; [`Self::build`] adds the other parts. Control and user-defined pieces become
    /// special tokens.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if a file is malformed.
    pub fn read_files(
        &mut self,
        file: &VocabularyFile,
        tokens: &AddedTokens,
    ) -> Result<(Tokenizer, Option<PythonTokens>)> {
        let path = &file.path;
        let fail = |error: tokenizers::Error| failed(path, error);
        let Self::Built {
            parts,
            keys,
            of_pieces,
        } = self
        else {
            return Err(failed(path, "no class has these files"));
        };
        let inner = match &file.content {
            Content::Bytes => {
                let (inner, python) = PythonTokens::bytes(tokens).map_err(fail)?;
                return Ok((inner, Some(python)));
            }
            Content::Counts(merges) => {
                let (words, merges) = (characters(path)?, characters(merges)?);
                let made = PythonTokens::words(&words, &merges, tokens);
                let (inner, python) = made.map_err(fail)?;
                return Ok((inner, Some(python)));
            }
            Content::Lines => {
                let made = super::python::of_lines(&characters(path)?, tokens);
                return Ok((made.map_err(fail)?, Some(PythonTokens::Lines)));
            }
            Content::Words => {
                let vocabulary = WordPiece::read_file(&text_of(path)).map_err(fail)?;
                let model = WordPiece::builder().vocab(vocabulary);
                Tokenizer::new(model.build().map_err(fail)?)
            }
            Content::Pairs(merges) => {
                let read = BPE::read_file(&text_of(path), &text_of(merges));
                let (vocabulary, merges) = read.map_err(fail)?;
                let model = BPE::builder().vocab_and_merges(vocabulary, merges);
                Tokenizer::new(model.build().map_err(fail)?)
            }
            Content::BytePairs(file) => {
                let mut tokenizer = Tokenizer::new(file.model().map_err(fail)?);
                let special = match file.special.is_empty() {
                    true => reserved(file.len(), tokens).ok_or_else(|| {
                        failed(
                            path,
                            "added_tokens_decoder has an id above all reasonable ones",
                        )
                    })?,
                    false => file.special.clone(),
                };
                let special = special.into_iter().map(|text| AddedToken::from(text, true));
                tokenizer.add_special_tokens(special).map_err(fail)?;
                tokenizer
            }
            Content::Pieces(file) => {
                *of_pieces = Some(file.added_tokens());
                let mut pieces = arranged(file, parts, keys, tokens);
                let mut tokenizer = match parts["model"]["type"].as_str() {
                    Some("BPE") => {
                        let merges = merges(&pieces);
                        if !parts.contains_key("files") {
                            rename(&mut pieces, tokens);
                        }
                        Tokenizer::new(of_pairs(&pieces, merges).map_err(fail)?)
                    }
                    _ => Tokenizer::new(likeliest(file, pieces).map_err(fail)?),
                };
                if !file.charsmap.is_empty() {
                    let map = Precompiled::from(&file.charsmap);
                    let map = map.map_err(|error| failed(path, error))?;
                    tokenizer.with_normalizer(Some(map)).map_err(fail)?;
                }
                tokenizer
            }
        };
        Ok((inner, None))
    }
}

/// Returns the file names that a class reads.
pub(super) fn names(parts: &Map<String, Value>) -> Vec<&str> {
    let files = parts.get("files").and_then(Value::as_array);
    let files = files.into_iter().flatten();
    files.filter_map(Value::as_str).collect()
}

/// Returns whether a directory has a class's own files, and no other vocabulary.
pub(super) fn are_there(directory: &Path, parts: &Map<String, Value>) -> bool {
    let names = names(parts);
    let is_there = |name: &&str| is_named(&directory.join(name));
    let mut others = OF_ANY_CLASS.iter().filter(|name| !names.contains(name));
    names.iter().all(is_there) && !others.any(is_there)
}

/// Reads a file's characters.
fn characters(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?).map_err(|error| failed(path, error))
}

/// Returns the special tokens that transformers adds to a tiktoken file of `n` tokens: those listed by ids, with others for
/// missing ids, then those without ids. `None` if there would be a million of them.
fn reserved(n: usize, tokens: &AddedTokens) -> Option<Vec<String>> {
    let n = n as u64;
    let end = tokens.listed.iter().map(|(id, _)| *id).max().unwrap_or(0);
    if end < n {
        return Some(tokens.unnamed.clone());
    }
    if end - n > MOST {
        return None;
    }
    let by_id: HashMap<u64, &String> = tokens.listed.iter().map(|(id, text)| (*id, text)).collect();
    let token = |id: u64| match by_id.get(&id) {
        Some(text) => text.to_string(),
        None => format!("<|reserved_token_{id}|>"),
    };
    let mut all: Vec<String> = (n..=end).map(token).collect();
    let new = tokens.unnamed.iter().filter(|text| !all.contains(text));
    let new: Vec<String> = new.cloned().collect();
    all.extend(new);
    Some(all)
}

/// Gives pieces the texts that `added_tokens_decoder` lists for their ids, as transformers does for files of no class.
fn rename(pieces: &mut [(String, f64)], tokens: &AddedTokens) {
    let mut known: HashSet<String> = pieces.iter().map(|(text, _)| text.clone()).collect();
    for (id, text) in &tokens.listed {
        let piece = usize::try_from(*id).ok().and_then(|id| pieces.get_mut(id));
        if let Some((piece, _)) = piece
            && known.insert(text.clone())
        {
            known.remove(piece);
            piece.clone_from(text);
        }
    }
}

/// Returns the pieces in the class's order: transformers' `convert_from_spm`.
fn arranged(
    file: &SentencePiece,
    parts: &Map<String, Value>,
    keys: &BTreeMap<String, Value>,
    tokens: &AddedTokens,
) -> Vec<(String, f64)> {
    let own = |piece: &Piece| (piece.text.clone(), f64::from(piece.score));
    let order = filled(parts.get("pieces").unwrap_or(&Value::Null), keys);
    let side = |side: &str| {
        let mut pieces: Vec<(String, f64)> = Vec::new();
        for entry in order[side].as_array().into_iter().flatten() {
            let score = entry["score"].as_f64().unwrap_or(0.0);
            if entry["each"].is_string() {
                pieces.extend(each(entry).map(|text| (text, score)));
                continue;
            }
            let text = match (entry.as_str(), entry["said"].as_str()) {
                (Some(name), _) => match name.strip_prefix('=') {
                    Some(text) => Some(text.to_string()),
                    None => tokens.named.get(name).cloned(),
                },
                // A token by the files beside the vocabulary, or else one that is not the class's.
                (None, Some(name)) if tokens.said.contains(name) => {
                    let key = keys.get(name).and_then(Value::as_str);
                    tokens.named.get(name).cloned().or(key.map(str::to_string))
                }
                (None, Some(_)) => entry["else"].as_str().map(str::to_string),
                (None, None) => entry["piece"].as_str().map(str::to_string),
            };
            let is_last = |text: &String| pieces.last().is_some_and(|(last, _)| last == text);
            pieces.extend(text.filter(|text| !is_last(text)).map(|text| (text, score)));
        }
        pieces
    };
    let skipped = order["skip"].as_u64().unwrap_or(0) as usize;
    let mut pieces = side("before");
    let further = file.pieces.iter().skip(skipped).map(own);
    match order["once"].as_bool() {
        Some(true) => {
            let first: Vec<String> = pieces.iter().map(|(text, _)| text.clone()).collect();
            pieces.extend(further.filter(|(text, _)| !first.contains(text)));
        }
        _ => pieces.extend(further),
    }
    if order["special"].as_bool() == Some(true) {
        let mut special = further_tokens(parts, keys);
        if order["reversed"].as_bool() == Some(true) {
            special.reverse();
        }
        pieces.extend(special.into_iter().map(|token| (token, 0.0)));
    }
    pieces.extend(side("after"));
    pieces
}

/// Makes a Unigram model.
fn likeliest(file: &SentencePiece, pieces: Vec<(String, f64)>) -> tokenizers::Result<Unigram> {
    Unigram::from(pieces, Some(file.unknown), false)
}

/// Returns the merges, in the order in which their pieces are listed: transformers' `generate_merges`.
fn merges(pieces: &[(String, f64)]) -> Vec<(String, String)> {
    let ids = ids(pieces);
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
    merges
}

/// Makes a BPE model.
fn of_pairs(pieces: &[(String, f64)], merges: Vec<(String, String)>) -> tokenizers::Result<BPE> {
    let ids = ids(pieces).into_iter();
    let vocabulary: Vocab = ids.map(|(text, id)| (text.to_string(), id)).collect();
    BPE::builder().vocab_and_merges(vocabulary, merges).build()
}

fn ids(pieces: &[(String, f64)]) -> HashMap<&str, u32> {
    let pieces = (0..).zip(pieces);
    pieces.map(|(id, (text, _))| (&text[..], id)).collect()
}

/// Reads a file that is no Git LFS pointer.
fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = read_limited(path, MAX_BYTES, "vocabulary")?;
    check_pointer(path, &bytes)?;
    Ok(bytes)
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
