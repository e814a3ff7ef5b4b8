//! Reads `config_sentence_transformers.json`: the kind of model, its prompts, and the form of results.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::{COLBERT, Kind, finished, optional, torch_class};
use crate::checkpoint::config_json::ConfigJson;
use crate::error::Result;
use crate::text::prompts::Prompts;
use crate::text::scoring::{ScoreFunction, Similarity};
use crate::text::sentences::stages::VectorMap;

/// The name of the file.
pub(super) const FILE: &str = "config_sentence_transformers.json";
/// Keys that change no vector and no score: versions.
const HARMLESS: &[&str] = &["__version__", "requirements"];
/// Layers that stay in f32 if the others do not.
const IN_F32: &str = "keep_in_fp32_modules";

/// The contents of the file.
#[derive(Debug, Default)]
pub(super) struct Settings {
    pub prompts: Prompts,
    /// The map that keeps a part of a vector's features.
    pub last_step: Option<VectorMap>,
    /// The function for a cross-encoder's scores.
    pub scoring: Option<ScoreFunction>,
    /// The similarity of two texts.
    pub similarity: Similarity,
}

/// Reads `similarity_fn_name`; a kind of model has a function of its own without it.
///
/// # Errors
/// If it names a function that this kind does not have.
fn similarity(json: &ConfigJson, kind: &Kind) -> Result<Similarity> {
    const KEY: &str = "similarity_fn_name";
    let of_vectors = [
        ("cosine", Similarity::Cosine),
        ("dot", Similarity::Dot),
        ("euclidean", Similarity::Euclidean),
        ("manhattan", Similarity::Manhattan),
    ];
    let of_tokens = [
        ("maxsim", Similarity::MaxSim),
        ("meanmaxsim", Similarity::MeanMaxSim),
    ];
    let (known, default) = match kind {
        Kind::MultiVectorEncoder => (&of_tokens[..], Similarity::MaxSim),
        Kind::SparseEncoder => (&of_vectors[..], Similarity::Dot),
        _ => (&of_vectors[..], Similarity::Cosine),
    };
    let names = known.iter().map(|(name, _)| Value::from(*name));
    json.only(KEY, &names.chain([Value::Null]).collect::<Vec<_>>())?;
    let name = json.text(&[KEY])?;
    let named = (known.iter()).find(|(known, _)| name.as_deref() == Some(*known));
    Ok(named.map_or(default, |(_, similarity)| *similarity))
}

/// Returns the kind of model in a folder with a `modules.json`.
///
/// # Errors
/// If the file is malformed.
pub(super) fn kind(directory: &Path) -> Result<Kind> {
    const KEY: &str = "model_type";
    let json = optional(&directory.join(FILE))?;
    // Files before version 5 do not have the key.
    if json
        .as_ref()
        .is_some_and(|json| json.at("query_prefix").is_some())
    {
        return Ok(Kind::named(COLBERT)); // PyLate's, some without a type
    }
    let named = json.filter(|json| json.at(KEY).is_some());
    let Some(json) = named else {
        return Ok(Kind::SentenceTransformer);
    };
    let name = json.text(&[KEY])?;
    Ok(Kind::named(name.as_deref().unwrap_or("null")))
}

impl Settings {
    /// Reads the file in a folder, if there is one.
    ///
    /// # Errors
    /// If a key is unknown, or has a value that is not supported.
    pub fn open(directory: &Path, kind: &Kind) -> Result<Self> {
        let mut settings = Self::default();
        if *kind != Kind::CrossEncoder {
            let names = ["query", "document"].map(|name| (name.to_string(), String::new()));
            settings.prompts.by_name.extend(names);
        }
        let Some(json) = optional(&directory.join(FILE))? else {
            return Ok(settings);
        };
        let prompts: Option<BTreeMap<String, Option<String>>> = json.parsed("prompts")?;
        let prompts = prompts.into_iter().flatten();
        let prompts = prompts.map(|(name, prompt)| (name, prompt.unwrap_or_default()));
        settings.prompts.by_name.extend(prompts);
        settings.prompts.default = json.text(&["default_prompt_name"])?;
        if let Some(name) = &settings.prompts.default
            && !settings.prompts.by_name.contains_key(name)
        {
            let known: Vec<&String> = settings.prompts.by_name.keys().collect();
            let reason = format!("is {name:?}, but the prompts are {known:?}");
            return Err(json.error(&["default_prompt_name"], reason));
        }
        let mut harmless = HARMLESS.to_vec();
        match kind {
            Kind::CrossEncoder => {
                settings.scoring = torch_class::scoring(&json, "activation_fn")?;
                harmless.extend(["similarity_fn_name", "truncate_dim", IN_F32]);
            }
            _ => {
                settings.similarity = similarity(&json, kind)?;
                let (key, unread, step): (_, _, fn(usize) -> VectorMap) = match kind {
                    Kind::SparseEncoder => {
                        ("max_active_dims", "truncate_dim", VectorMap::KeepLargest)
                    }
                    _ => ("truncate_dim", "max_active_dims", VectorMap::Truncate),
                };
                let n_kept = json.optional_size(&[key])?;
                if n_kept == Some(0) {
                    return Err(json.error(&[key], "found 0, expected a number of features"));
                }
                settings.last_step = n_kept.map(step);
                harmless.extend([unread, "activation_fn", IN_F32]);
            }
        }
        json.text(&["model_type"])?;
        finished(&json, &harmless)?;
        Ok(settings)
    }
}
