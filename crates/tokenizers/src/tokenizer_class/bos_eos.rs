//! Tokens around a text by `add_bos_token` and `add_eos_token`, which transformers reads if there is no `tokenizer.json`.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use tokenizers::Tokenizer;

use candle_blocks_base::Result;
use candle_blocks_files::config_json::ConfigJson;

const KEYS: [(&str, &str); 2] = [
    ("add_bos_token", "bos_token"),
    ("add_eos_token", "eos_token"),
];

/// The class in the code of gte-Qwen2.
const CODE: &str = "tokenization_qwen.Qwen2TokenizerFast";

/// Returns whether the file has one of the keys.
pub(super) fn are_said(config: Option<&ConfigJson>) -> bool {
    let has = |config: &ConfigJson| {
        config
            .entries()
            .any(|(key, _)| KEYS.iter().any(|(known, _)| known == key))
    };
    config.is_some_and(has)
}

/// Returns whether code on the Hub makes the tokenizer, and puts tokens around a text also with a `tokenizer.json`, which lacks
/// them: that of gte-Qwen2.
///
/// # Errors
/// If the key is missing, for the code's own default is not known here.
pub(super) fn are_of_code(config: &ConfigJson) -> Result<bool> {
    let code = config.value_at("auto_map.AutoTokenizer");
    let is_known = |class: &Value| class.as_str().is_some_and(|name| name.ends_with(CODE));
    let is_known = match code {
        Some(Value::Array(classes)) => classes.iter().any(is_known),
        Some(class) => is_known(class),
        None => false,
    };
    let (key, _) = KEYS[1];
    if is_known && config.value_at(key).is_none() {
        let reason = format!(
            "missing, while {CODE} decides whether a text has a last token; set it to true for gte-Qwen2"
        );
        return Err(config.error(&[key], reason));
    }
    Ok(is_known)
}

/// Returns a template with the tokens that the file or else the class asks for: transformers' `update_post_processor`.
///
/// # Errors
/// If a key is no truth value.
pub(super) fn template(
    inner: &Tokenizer,
    config: Option<&ConfigJson>,
    parts: &Map<String, Value>,
    named: &BTreeMap<String, String>,
) -> Result<Value> {
    let mut special = Map::new();
    let mut end = |(key, name): (&str, &str)| -> Result<Option<String>> {
        let default = parts.get(key).and_then(Value::as_bool).unwrap_or(false);
        let said = config.and_then(|config| config.value_at(key));
        let is_wanted = match (config, said) {
            (_, Some(Value::Null)) => false,
            (Some(config), _) => config.flag(&[key], default)?,
            (None, _) => default,
        };
        let token = named.get(name).filter(|_| is_wanted);
        let id = token.and_then(|token| inner.token_to_id(token));
        Ok(token.zip(id).map(|(token, id)| {
            special.insert(
                token.clone(),
                json!({"id": token, "ids": [id], "tokens": [token]}),
            );
            token.clone()
        }))
    };
    let [first, last] = [end(KEYS[0])?, end(KEYS[1])?];
    let text = |side: &str, kind: u32| {
        let token = |token: &Option<String>| {
            let token = token.as_ref();
            token.map(|token| json!({"SpecialToken": {"id": token, "type_id": kind}}))
        };
        let text = json!({"Sequence": {"id": side, "type_id": kind}});
        let pieces = [token(&first), Some(text), token(&last)];
        pieces.into_iter().flatten().collect::<Vec<Value>>()
    };
    let single = text("A", 0);
    let pair: Vec<Value> = single.iter().cloned().chain(text("B", 1)).collect();
    Ok(
        json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}),
    )
}
