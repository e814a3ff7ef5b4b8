//! The tokenizer parts that a class builds: normalizer, pre-tokenizer, decoder and post-processor.
//!
//! A part in `classes.json` has the form of `tokenizer.json`, with placeholders for keys' values: the text `$key` means a
//! value, and `{"if": key, "then": .., "else": ..}` one of two parts. Null values in a list are left out.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokenizers::normalizers::{NormalizerWrapper, Sequence as Normalizers};
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::{DecoderWrapper, PostProcessorWrapper, PreTokenizerWrapper};

use super::{TokenizerClass, bos_eos};
use candle_blocks_base::Result;
use candle_blocks_files::config_json::ConfigJson;

/// The placeholder, in a list of normalizers, for the character table in `tokenizer.json`.
const PRECOMPILED: &str = "precompiled";

/// The source for a tokenizer's vocabulary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `tokenizer.json`.
    TokenizerJson,
    /// The class's own files; there is no `tokenizer.json`.
    ClassFiles,
}

impl TokenizerClass {
    /// Replaces the parts that the class builds before it adds tokens. `named` has the special tokens by name.
    ///
    /// # Errors
    /// [`Error::ConfigKey`](candle_blocks_base::Error::ConfigKey) if the parts do not fit together.
    pub fn build(
        &self,
        inner: &mut tokenizers::Tokenizer,
        config: Option<&ConfigJson>,
        named: &BTreeMap<String, String>,
    ) -> Result<()> {
        let Self::Built { parts, keys, .. } = self else {
            return Ok(());
        };
        let model = filled(&parts["model"], keys);
        if let Some(model) = super::vocabulary::fitted(inner, &model, named) {
            inner.with_model(model);
        }
        let precompiled = inner.get_normalizer().and_then(precompiled).cloned();
        let mut keys = keys.clone();
        keys.insert(PRECOMPILED.to_string(), precompiled.is_some().into());
        let mut normalizers = Vec::new();
        for part in listed(&parts["normalizer"], &keys) {
            match part.as_str() {
                Some(PRECOMPILED) => normalizers.extend(precompiled.clone()),
                _ => normalizers.push(read::<NormalizerWrapper>(part, config)?),
            }
        }
        let normalizer = match normalizers.len() {
            0 | 1 => normalizers.pop(),
            _ => Some(Normalizers::new(normalizers).into()),
        };
        // This only fails for added tokens that the normalizer refuses, and none does.
        let _ = inner.with_normalizer(normalizer);
        let splits = listed(&parts["pre_tokenizer"], &keys).into_iter();
        let splits = splits.map(|part| read::<PreTokenizerWrapper>(part, config));
        let mut splits = splits.collect::<Result<Vec<_>>>()?;
        let split = match splits.len() {
            0 | 1 => splits.pop(),
            _ => Some(PreTokenizerWrapper::Sequence(PreTokenizers::new(splits))),
        };
        inner.with_pre_tokenizer(split);
        let decoder = filled(&parts["decoder"], &keys);
        inner.with_decoder(match decoder.is_null() {
            true => None, // tokens with spaces between them
            false => Some(read::<DecoderWrapper>(decoder, config)?),
        });
        Ok(())
    }

    /// Replaces the post-processor by the class's own, if it has one, after all tokens are added. Without any, a template
    /// assigns types to a pair's texts.
    ///
    /// # Errors
    /// [`Error::ConfigKey`](candle_blocks_base::Error::ConfigKey) if a key names a token that the tokenizer does not have.
    pub fn finish(
        &self,
        inner: &mut tokenizers::Tokenizer,
        config: Option<&ConfigJson>,
        named: &BTreeMap<String, String>,
        origin: Origin,
    ) -> Result<()> {
        if let (Origin::TokenizerJson, Some(said)) = (origin, config)
            && bos_eos::are_of_code(said)?
        {
            let template = bos_eos::template(inner, config, &Map::new(), named)?;
            inner.with_post_processor(Some(read::<PostProcessorWrapper>(template, config)?));
            return Ok(());
        }
        let has_other = match origin {
            Origin::TokenizerJson => inner.get_post_processor().is_some(),
            Origin::ClassFiles => bos_eos::are_said(config),
        };
        let is_left = |parts: &Map<String, Value>| match origin {
            Origin::ClassFiles if parts.contains_key("ends_of_keys") => true,
            _ => has_other && parts.contains_key("only_if_none"),
        };
        let template = match self {
            Self::Built { parts, keys, .. } if !is_left(parts) => {
                check_language(inner, keys, config)?;
                own_template(inner, parts, keys, named, config)?
            }
            _ => None,
        };
        if let (None, Origin::ClassFiles, Self::Built { parts, .. }) = (&template, origin, self) {
            let template = bos_eos::template(inner, config, parts, named)?;
            inner.with_post_processor(Some(read::<PostProcessorWrapper>(template, config)?));
            return Ok(());
        }
        let plain = || {
            let text = |side: &str, kind: u32| json!({"Sequence": {"id": side, "type_id": kind}});
            template_of(
                [vec![text("A", 0)], vec![text("A", 0), text("B", 1)]],
                Map::new(),
            )
        };
        if let Some(template) = template.or_else(|| (!has_other).then(plain)) {
            inner.with_post_processor(Some(read::<PostProcessorWrapper>(template, config)?));
        }
        Ok(())
    }
}

/// Refuses a language that has no token.
fn check_language(
    inner: &tokenizers::Tokenizer,
    keys: &BTreeMap<String, Value>,
    config: Option<&ConfigJson>,
) -> Result<()> {
    let language = keys.get("src_lang").and_then(Value::as_str);
    match (language, config) {
        (Some(language), Some(config)) if inner.token_to_id(language).is_none() => {
            let reason =
                format!("{language:?} is not a token of the tokenizer; set a language that is");
            Err(config.error(&["src_lang"], reason))
        }
        _ => Ok(()),
    }
}

/// Returns the entries of a class's `special`: a token, a token's key, or `{"each": .., "from": .., "to": ..}` for numbered
/// ones.
pub(super) fn further_tokens(
    parts: &Map<String, Value>,
    keys: &BTreeMap<String, Value>,
) -> Vec<String> {
    let entries = parts.get("special").map(|entries| listed(entries, keys));
    let mut tokens = Vec::new();
    for entry in entries.into_iter().flatten() {
        if let Some(token) = entry.as_str() {
            tokens.push(token.to_string());
        }
        tokens.extend(each(&entry));
    }
    tokens
}

/// Returns numbered tokens.
pub(super) fn each(entry: &Value) -> impl Iterator<Item = String> {
    let number = |side: &str| entry[side].as_u64().unwrap_or(0);
    let text = entry["each"].as_str().unwrap_or_default();
    (number("from")..number("to")).map(|i| text.replace("{}", &i.to_string()))
}

/// Returns a class's template; `None` if it has none or the files disable one of its tokens.
fn own_template(
    inner: &tokenizers::Tokenizer,
    parts: &Map<String, Value>,
    keys: &BTreeMap<String, Value>,
    named: &BTreeMap<String, String>,
    config: Option<&ConfigJson>,
) -> Result<Option<Value>> {
    let mut special = Map::new();
    let mut side = |side: &Value| -> Result<Option<Vec<Value>>> {
        let mut pieces = Vec::new();
        for piece in pieces_of(side, keys) {
            let (name, kind) = piece.split_once(':').unwrap_or((&piece, "0"));
            let kind: u32 = kind.parse().unwrap_or(0);
            let (name, own_id) = match name.split_once('#') {
                Some((name, id)) => (name, id.parse().ok()),
                None => (name, None),
            };
            if let Some(side) = name.strip_prefix('$') {
                pieces.push(json!({"Sequence": {"id": side, "type_id": kind}}));
                continue;
            }
            let token = match (name.strip_prefix('='), named.get(name), config) {
                (Some(text), ..) => text,
                (None, Some(token), _) => token,
                (None, None, Some(config)) => {
                    let reason = "null, but the class puts this token around texts; name one";
                    return Err(config.error(&[name], reason));
                }
                _ => return Ok(None),
            };
            let unknown = || inner.token_to_id(named.get("unk_token")?);
            let Some(id) = own_id.or_else(|| inner.token_to_id(token).or_else(unknown)) else {
                return Ok(None);
            };
            let entry = json!({"id": token, "ids": [id], "tokens": [token]});
            special.insert(token.to_string(), entry);
            pieces.push(json!({"SpecialToken": {"id": token, "type_id": kind}}));
        }
        Ok(Some(pieces))
    };
    let (Some(single), Some(pair)) = (parts.get("single"), parts.get("pair")) else {
        return Ok(None);
    };
    let sides = side(single)?.zip(side(pair)?);
    let template = sides.map(|(single, pair)| template_of([single, pair], special));
    // RoBERTa's processor leaves the space of a token out of its offsets, before it adds special tokens.
    Ok(template.map(|template| match parts.get("offsets") {
        Some(offsets) => {
            json!({"type": "Sequence", "processors": [filled(offsets, keys), template]})
        }
        None => template,
    }))
}

fn template_of([single, pair]: [Vec<Value>; 2], special: Map<String, Value>) -> Value {
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special})
}

/// Returns the pieces of one side of a template, which is a text with spaces between them, or a list.
fn pieces_of(side: &Value, keys: &BTreeMap<String, Value>) -> Vec<String> {
    let text = |value: Value| value.as_str().unwrap_or_default().to_string();
    match filled(side, keys) {
        Value::String(pieces) => pieces.split(' ').map(str::to_string).collect(),
        Value::Array(pieces) => pieces.into_iter().map(text).collect(),
        _ => Vec::new(),
    }
}

/// Returns a normalizer's character table.
fn precompiled(normalizer: &NormalizerWrapper) -> Option<&NormalizerWrapper> {
    match normalizer {
        NormalizerWrapper::Precompiled(_) => Some(normalizer),
        NormalizerWrapper::Sequence(all) => all.as_ref().iter().find_map(precompiled),
        _ => None,
    }
}

fn listed(parts: &Value, keys: &BTreeMap<String, Value>) -> Vec<Value> {
    match filled(parts, keys) {
        Value::Array(parts) => parts,
        _ => Vec::new(),
    }
}

/// Returns a part with the keys' values filled in.
pub(super) fn filled(part: &Value, keys: &BTreeMap<String, Value>) -> Value {
    match part {
        Value::String(text) => {
            let whole = text.strip_prefix('$').and_then(|key| keys.get(key));
            if let Some(value) = whole {
                return value.clone();
            }
            let within = keys.iter().fold(text.clone(), |text, (key, value)| {
                let value = value.as_str().unwrap_or_default();
                text.replace(&format!("${key}"), value)
            });
            within.into()
        }
        Value::Array(parts) => {
            let parts = parts.iter().map(|part| filled(part, keys));
            parts.filter(|part| !part.is_null()).collect()
        }
        Value::Object(parts) => match parts.get("if").and_then(Value::as_str) {
            Some(key) => {
                let is_set =
                    !matches!(keys.get(key), None | Some(Value::Null | Value::Bool(false)));
                filled(&part[if is_set { "then" } else { "else" }], keys)
            }
            None => {
                let parts = parts.iter();
                let parts = parts.map(|(name, part)| (name.clone(), filled(part, keys)));
                Value::Object(parts.collect())
            }
        },
        other => other.clone(),
    }
}

fn read<T: DeserializeOwned>(part: Value, config: Option<&ConfigJson>) -> Result<T> {
    serde_json::from_value(part).map_err(|error| match config {
        Some(config) => config.error(&["tokenizer_class"], error.to_string()),
        None => candle_blocks_base::Error::input("tokenizer_class", error.to_string()),
    })
}
