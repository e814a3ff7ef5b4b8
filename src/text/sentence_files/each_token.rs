//! Reads how a `MultiVectorEncoder`, a model with a vector for each token, treats queries and documents.

use serde_json::Value;

use super::{PoolingBody, finished};
use crate::checkpoint::config_json::ConfigJson;
use crate::error::Result;
use crate::text::encoder::reading::{QueryExpansion, TextReading};

/// The computation of a vector for each token.
#[derive(Debug)]
pub(in crate::text) struct EachToken {
    pub body: PoolingBody,
    /// How queries are read; documents are read as the model's texts.
    pub queries: TextReading,
    /// The tokens of queries and of documents whose vectors are left out.
    pub skipped: [Vec<String>; 2],
}

/// Reads `query_expansion`, if there is one.
///
/// # Errors
/// If a key or a value is not supported.
pub(super) fn expansion(json: &ConfigJson) -> Result<Option<QueryExpansion>> {
    const KEY: &str = "query_expansion";
    const STRATEGY: &str = "strategy";
    let Some(section) = json.section(&[KEY])? else {
        return Ok(None);
    };
    section.only(STRATEGY, &["fixed".into(), "min".into()])?;
    Ok(Some(QueryExpansion {
        length: section.width_or(&["length"], 0)?,
        truncates: section.text(&[STRATEGY])?.as_deref() != Some("min"),
        attends: section.flag(&["attend"], false)?,
        token: section.text(&["token"])?,
    }))
}

/// Reads the configuration of a `MultiVectorMask`: the words that are skipped in queries and in documents.
///
/// # Errors
/// If a key or a value is not supported.
pub(super) fn mask(json: &ConfigJson) -> Result<[Vec<String>; 2]> {
    const TASKS: &str = "skiplist_tasks";
    json.only("keep_only_token_ids", &[Value::Null])?;
    let words = json.texts(&["skiplist_words"])?.unwrap_or_default();
    let tasks = match json.at(TASKS) {
        Some(Value::String(task)) => vec![task.clone()],
        _ => json
            .texts(&[TASKS])?
            .unwrap_or_else(|| vec!["document".into()]),
    };
    finished(json, &[])?;
    Ok(
        ["query", "document"].map(|role| match tasks.iter().any(|task| task == role) {
            true => words.clone(),
            false => Vec::new(),
        }),
    )
}
