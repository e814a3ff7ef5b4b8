//! Reads the configuration of a `Pooling`.

use serde_json::Value;

use super::finished;
use crate::checkpoint::config_json::ConfigJson;
use crate::error::{Error, Result};
use crate::text::Pooling;
use crate::text::sentences::stages::VectorMap;

/// The width of a token's vector, which the model itself knows.
const HARMLESS: &[&str] = &["embedding_dimension", "word_embedding_dimension"];

/// Returns the poolings, whose results are concatenated, and whether a prompt's tokens are left out.
///
/// # Errors
/// If a pooling or a key is unknown.
pub(super) fn open(json: &ConfigJson) -> Result<(Vec<Pooling>, bool)> {
    const KEY: &str = "pooling_mode";
    // Python treats null as false.
    let includes = json
        .at("include_prompt")
        .is_none_or(|value| !value.is_null());
    let skip_prompt = !(json.flag(&["include_prompt"], true)? && includes);
    let mut poolings = Vec::new();
    if let Some(value) = json.at(KEY) {
        let names = match value {
            Value::Array(_) => json.texts(&[KEY])?.unwrap_or_default(),
            _ => json.text(&[KEY])?.into_iter().collect(),
        };
        let known = |name: &String| {
            name.parse()
                .map_err(|e: Error| json.error(&[KEY], e.to_string()))
        };
        poolings = names.iter().map(known).collect::<Result<_>>()?;
        let is_files = |pooling: &Pooling| Pooling::ALL.contains(pooling);
        if poolings.is_empty() || !poolings.iter().all(is_files) {
            let known = Pooling::ALL.map(Pooling::name).join(", ");
            return Err(json.error(
                &[KEY],
                format!("names no pooling of sentence-transformers; known are {known}"),
            ));
        }
    }
    let is_old = |key: &&str| key.starts_with("pooling_mode_");
    for key in json.keys().filter(is_old) {
        let pooling = Pooling::ALL
            .into_iter()
            .find(|pooling| pooling.old_key() == key);
        match pooling {
            _ if !json.flag(&[key], false)? || json.at(KEY).is_some() => {}
            Some(pooling) => poolings.push(pooling),
            None => {
                let known = Pooling::ALL.map(Pooling::old_key).join(", ");
                return Err(json.error(&[key], format!("not a known pooling; known are {known}")));
            }
        }
    }
    let place = |pooling: &Pooling| Pooling::ALL.iter().position(|one| one == pooling);
    if json.at(KEY).is_none() {
        poolings.sort_by_key(place);
    }
    if poolings.is_empty() {
        poolings.push(Pooling::Mean); // the default in sentence-transformers
    }
    finished(json, HARMLESS)?;
    Ok((poolings, skip_prompt))
}

/// Reads the configuration of a `SpladePooling`
/// (<https://github.com/huggingface/sentence-transformers/blob/v5.1.0/sentence_transformers/sparse_encoder/models/SpladePooling.py>):
/// the pooling, and the map on each token's logits. The map never decreases, so a maximum may come first.
///
/// # Errors
/// If a value or a key is unknown.
pub(super) fn splade(json: &ConfigJson) -> Result<(Pooling, VectorMap)> {
    const STRATEGY: &str = "pooling_strategy";
    const ACTIVATION: &str = "activation_function";
    json.only(STRATEGY, &["max".into(), "sum".into()])?;
    json.only(ACTIVATION, &["relu".into(), "log1p_relu".into()])?;
    let pooling = match json.text(&[STRATEGY])?.as_deref() {
        Some("sum") => Pooling::Sum,
        _ => Pooling::Max,
    };
    let times = match json.text(&[ACTIVATION])?.as_deref() {
        Some("log1p_relu") => 2,
        _ => 1,
    };
    finished(json, &[HARMLESS, &["chunk_size"]].concat())?;
    Ok((pooling, VectorMap::LogOfRelu(times)))
}
