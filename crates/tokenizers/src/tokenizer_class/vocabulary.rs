//! Applies a class's rule for unknown characters, which overrides the model in `tokenizer.json`.

use std::collections::BTreeMap;

use serde_json::Value;
use tokenizers::models::bpe::BPE;
use tokenizers::models::unigram::Unigram;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{Model, ModelWrapper};

/// A character that is in no vocabulary.
const UNKNOWN: &str = "\u{10fffe}";

/// Returns the model with its class's rule for unknown characters, or `None` if that changes nothing, because copying a
/// vocabulary takes time.
pub(super) fn fitted(
    inner: &tokenizers::Tokenizer,
    said: &Value,
    named: &BTreeMap<String, String>,
) -> Option<ModelWrapper> {
    let unknown = match said.get("unk_token") {
        Some(Value::String(name)) => match name.strip_prefix('=') {
            Some(text) => Some(text.to_string()),
            None => named.get(name).cloned(),
        },
        _ => None,
    };
    let unknown = unknown.as_ref();
    match inner.get_model() {
        ModelWrapper::BPE(bpe) => of_bpe(bpe, said, unknown).map(Into::into),
        ModelWrapper::Unigram(unigram) => {
            let id = match &said["unk_id"] {
                Value::String(name) => unigram.token_to_id(named.get(name)?)?,
                id => id.as_u64()? as u32,
            };
            let falls_back = said["byte_fallback"].as_bool().unwrap_or(false);
            of_unigram(unigram, id, falls_back).map(Into::into)
        }
        ModelWrapper::WordPiece(words) => {
            let unknown = unknown?;
            let is_same = words.unk_token == *unknown
                && words.continuing_subword_prefix == "##"
                && words.max_input_chars_per_word == 100;
            if is_same {
                return None;
            }
            let mut words = words.clone();
            words.unk_token.clone_from(unknown);
            words.continuing_subword_prefix = "##".to_string();
            words.max_input_chars_per_word = 100;
            Some(words.into())
        }
        ModelWrapper::WordLevel(_) => None,
    }
}

fn of_bpe(bpe: &BPE, said: &Value, unknown: Option<&String>) -> Option<BPE> {
    let flag = |key: &str| said[key].as_bool().unwrap_or(false);
    let (fuses, falls_back) = (flag("fuse_unk"), flag("byte_fallback"));
    let ignores = flag("ignore_merges");
    let is_same = bpe.unk_token.as_ref() == unknown && bpe.fuse_unk == fuses;
    let suffix = said["end_of_word_suffix"].as_str().unwrap_or_default();
    let has_suffix = bpe.end_of_word_suffix.as_deref().unwrap_or_default() == suffix;
    // If all bytes are tokens, no character is unknown.
    let has = |token: String| bpe.token_to_id(&token).is_some();
    let has_all = || match falls_back {
        true => (0..=255).all(|byte| has(format!("<0x{byte:02X}>"))),
        false => ByteLevel::alphabet()
            .into_iter()
            .all(|byte| has(byte.into())),
    };
    let is_left = bpe.byte_fallback == falls_back && (is_same || has_all());
    if is_left && has_suffix && bpe.dropout.is_none() && bpe.ignore_merges == ignores {
        return None;
    }
    let mut bpe = bpe.clone();
    bpe.unk_token = unknown.cloned();
    (bpe.fuse_unk, bpe.byte_fallback) = (fuses, falls_back);
    (bpe.dropout, bpe.ignore_merges) = (None, ignores);
    bpe.end_of_word_suffix = Some(suffix.to_string()).filter(|suffix| !suffix.is_empty());
    bpe.clear_cache();
    Some(bpe)
}

fn of_unigram(unigram: &Unigram, id: u32, falls_back: bool) -> Option<Unigram> {
    let seen = unigram.tokenize(UNKNOWN).ok();
    let seen = seen.and_then(|tokens| tokens.first().map(|token| token.id));
    if seen == Some(id) && unigram.byte_fallback() == falls_back {
        return None;
    }
    let words = unigram.iter().cloned().collect();
    Unigram::from(words, Some(id as usize), falls_back).ok()
}
