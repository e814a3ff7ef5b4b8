//! Reads the tokens that files beside `tokenizer.json` add to it, as in transformers.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use candle_blocks_templates::minijinja::value::{Serde, Value, ValueKind};
use tokenizers::AddedToken;

use crate::tokenizer::config::SPECIAL_TOKENS;
use crate::tokenizer_class::TokenizerClass;
use crate::tokenizer_class::added_tokens::AddedTokens;
use candle_blocks_base::Result;
use candle_blocks_files::config_json::ConfigJson;
use candle_blocks_files::tensors::read_limited;

/// The size limit: a `tokenizer_config.json` with a chat template and thousands of tokens has about a megabyte.
const MAX_BYTES: u64 = 50_000_000;

/// Keys that list special tokens without names.
const LISTS: [&str; 2] = ["extra_special_tokens", "additional_special_tokens"];

const MASK: &str = "mask_token";

/// The tokens that `tokenizer.json` adds by their text, with their ids.
pub(crate) type Known = HashMap<String, (u64, AddedToken)>;

/// Returns the tokens in `added_tokens_decoder`, or else in `added_tokens.json`, by their ids; then named special tokens,
/// and further ones. If the files do not name or list them, the tokenizer's class does. `known` has the tokens that
/// `tokenizer.json` adds itself, which count as listed, unless there is an `added_tokens_decoder`.
///
/// # Errors
/// If a file is malformed.
pub(crate) fn added_tokens(
    directory: &Path,
    config: Option<&ConfigJson>,
    class: &TokenizerClass,
    known: &Known,
) -> Result<AddedTokens> {
    let mut keys = match config {
        Some(config) => entries(&ordered(config)?),
        None => Vec::new(),
    };
    let mut listed: Vec<(u64, AddedToken)> = Vec::new();
    let mut replaces = false;
    let by_id;
    let contents = |listed: &[(u64, AddedToken)]| -> Vec<(u64, String)> {
        let listed = listed.iter();
        listed
            .map(|(id, token)| (*id, token.content.clone()))
            .collect()
    };
    if let Some(decoder) = value(&keys, "added_tokens_decoder") {
        for (id, value) in entries(&decoder) {
            let id = id.parse().unwrap_or(u64::MAX);
            listed.extend(token(&value, Special::AsWritten).map(|token| (id, token)));
        }
        let is_listed = |token: &AddedToken| listed.iter().any(|(_, listed)| listed == token);
        by_id = contents(&listed);
        replaces = class.builds() && !known.values().all(|(_, token)| is_listed(token));
    } else {
        let open = |name: &str| -> Result<Vec<(String, Value)>> {
            match ConfigJson::open_named(&directory.join(name))? {
                Some(file) => Ok(entries(&ordered(&file)?)),
                None => Ok(Vec::new()),
            }
        };
        for (key, new) in open("special_tokens_map.json")? {
            let known = value(&keys, LISTS[0]).filter(|_| key == LISTS[0]);
            let new = match known.and_then(|known| joined(&known, &new)) {
                Some(both) => both,
                None => new,
            };
            keys.retain(|(known, _)| *known != key);
            keys.push((key, new));
        }
        let special = special(&keys);
        for (content, id) in open("added_tokens.json")? {
            let is_special = special.iter().any(|token| token.content == content);
            let id = u64::try_from(id).unwrap_or(u64::MAX);
            listed.push((id, AddedToken::from(content, is_special)));
        }
        by_id = contents(&listed);
        listed.retain(|(id, _)| !known.values().any(|(known, _)| known == id));
        listed.extend(known.values().cloned());
    }
    listed.sort_by_key(|(id, _)| *id);
    let said = keys.iter().map(|(key, _)| key.clone()).collect();
    for (name, token) in class.named_tokens() {
        if !keys.iter().any(|(key, _)| key == name) {
            keys.push((name.to_string(), Value::from(token)));
        }
    }
    // An object has named tokens, and is no list.
    let counts = |value: &Value| match value.kind() {
        ValueKind::Map => false,
        _ => !(class.passes_over_null() && value.is_none()),
    };
    let is_list = |(key, value): &(String, Value)| LISTS.contains(&key.as_str()) && counts(value);
    if !keys.iter().any(is_list) {
        keys.retain(|(key, value)| {
            !LISTS.contains(&key.as_str()) || value.kind() == ValueKind::Map
        });
        keys.push((LISTS[1].to_string(), class.further_tokens().into()));
    }
    let named = named(&keys);
    let mut special = special(&keys);
    let mask = value(&keys, MASK).filter(|_| class.mask_takes_spaces());
    for token in &mut special {
        let is_mask = mask.as_ref().and_then(Value::as_str) == Some(&token.content);
        token.lstrip |= is_mask;
        token.normalized |= is_mask && class.mask_is_normalized();
        token.special |= class.has_only_special_tokens();
        let is_text = |name: &&str| {
            value(&keys, name).as_ref().and_then(Value::as_str) == Some(&token.content)
        };
        if class.tokens_take_spaces() && ["pad_token", "eos_token", "unk_token"].iter().any(is_text)
        {
            (token.lstrip, token.rstrip) = (true, true);
        }
    }
    let is_known = |content: &str| !replaces && known.contains_key(content);
    let mut all: Vec<AddedToken> = Vec::new();
    for (_, mut token) in listed {
        token.special |= named.values().any(|named| *named == token.content);
        let is_same = |(_, known): &(u64, AddedToken)| *known == token;
        let is_first = all.iter().all(|other| other.content != token.content);
        if replaces || !is_first || !known.get(&token.content).is_some_and(is_same) {
            all.push(token);
        }
    }
    for token in &special {
        let is_listed = all.iter().any(|listed| listed.content == token.content);
        if !is_listed && !is_known(&token.content) {
            all.push(token.clone());
        }
    }
    if class.has_plain_special_tokens() {
        let plain = |token: AddedToken| AddedToken::from(token.content, true);
        all.extend(special.into_iter().map(plain));
    }
    Ok(AddedTokens {
        all,
        named,
        replaces,
        listed: by_id,
        unnamed: listed_tokens(&keys).map(|token| token.content).collect(),
        said,
    })
}

/// Returns the file with its keys in their original order, which determines ids.
fn ordered(file: &ConfigJson) -> Result<Value> {
    let text = read_limited(file.path(), MAX_BYTES, "tokenizer_config.json")?;
    let unordered = || {
        Value::from(Serde(
            file.entries().collect::<std::collections::BTreeMap<_, _>>(),
        ))
    };
    // Values that only Python reads, such as Infinity, do not occur in tokens.
    Ok(serde_json::from_slice(&text).unwrap_or_else(|_| unordered()))
}

fn entries(object: &Value) -> Vec<(String, Value)> {
    if object.kind() != ValueKind::Map {
        return Vec::new();
    }
    candle_blocks_templates::entries(object)
        .map(|(key, value)| (key.to_string(), value))
        .collect()
}

fn value(keys: &[(String, Value)], name: &str) -> Option<Value> {
    let found = keys.iter().find(|(key, _)| key == name);
    found
        .map(|(_, value)| value.clone())
        .filter(|value| !value.is_none())
}

/// Joins two lists; `None` unless both are lists.
fn joined(known: &Value, new: &Value) -> Option<Value> {
    let is_list = |list: &Value| list.kind() == ValueKind::Seq;
    if !is_list(known) || !is_list(new) {
        return None;
    }
    let mut all: Vec<Value> = known.try_iter().ok()?.collect();
    for token in new.try_iter().ok()? {
        if !all.contains(&token) {
            all.push(token);
        }
    }
    Some(all.into())
}

/// Returns special tokens by name: from keys that end with `_token`, and from an object with additional tokens.
fn named(keys: &[(String, Value)]) -> BTreeMap<String, String> {
    let further = value(keys, LISTS[0]).map(|tokens| entries(&tokens));
    let further = further.unwrap_or_default();
    let own = keys.iter().filter(|(name, _)| name.ends_with("_token"));
    let named = own.chain(&further).filter_map(|(name, value)| {
        let token = token(value, Special::Always)?;
        Some((name.clone(), token.content))
    });
    named.collect()
}

/// Returns the special tokens that keys name, as transformers 5 finds them.
fn special(keys: &[(String, Value)]) -> Vec<AddedToken> {
    let mut all: Vec<AddedToken> = Vec::new();
    all.extend(
        SPECIAL_TOKENS
            .iter()
            .filter_map(|name| token(&value(keys, name)?, Special::Always)),
    );
    let own = keys
        .iter()
        .filter(|(name, _)| name.ends_with("_token") && !SPECIAL_TOKENS.contains(&name.as_str()));
    all.extend(own.filter_map(|(_, value)| token(value, Special::Always)));
    for list in LISTS.iter().filter_map(|name| value(keys, name)) {
        if list.kind() == ValueKind::Map {
            let tokens = entries(&list);
            let tokens = tokens.iter();
            all.extend(tokens.filter_map(|(_, value)| token(value, Special::Always)));
        } else if list.is_true() {
            break;
        }
    }
    all.extend(listed_tokens(keys));
    all
}

/// Returns the special tokens in a list. The older key counts if the newer has no list.
fn listed_tokens(keys: &[(String, Value)]) -> impl Iterator<Item = AddedToken> {
    let lists = LISTS.iter().filter_map(|name| value(keys, name));
    let mut lists = lists.filter(|list| list.kind() != ValueKind::Map && list.is_true());
    let tokens = lists.next().into_iter();
    let tokens = tokens.flat_map(|list| list.try_iter().into_iter().flatten());
    tokens.filter_map(|value| token(&value, Special::AsWritten))
}

/// The default for tokens that an object describes: special or not.
#[derive(Clone, Copy, PartialEq)]
enum Special {
    Always,
    AsWritten,
}

/// Reads a token: a string, which makes it special, or an object with its text and how to match it.
fn token(value: &Value, special: Special) -> Option<AddedToken> {
    if let Some(text) = value.as_str() {
        return Some(AddedToken::from(text, true)).filter(|token| !token.content.is_empty());
    }
    let flag = |name: &str| {
        let value = value
            .get_attr(name)
            .ok()
            .filter(|value| value.kind() == ValueKind::Bool);
        value.map(|value| value.is_true())
    };
    let is_special = special == Special::Always || flag("special").unwrap_or(false);
    let content = value.get_attr("content").ok()?;
    let content = content.as_str().filter(|text| !text.is_empty())?;
    let token = AddedToken::from(content, is_special)
        .single_word(flag("single_word").unwrap_or(false))
        .lstrip(flag("lstrip").unwrap_or(false))
        .rstrip(flag("rstrip").unwrap_or(false))
        .normalized(flag("normalized").unwrap_or(!is_special));
    Some(token)
}
