//! The initial tokens for Whisper's decoder: the language, the task and "no timestamps", from keys of
//! `generation_config.json`.
//!
//! <https://github.com/huggingface/transformers/blob/v5.24.0/src/transformers/models/whisper/generation_whisper.py>

use std::collections::BTreeMap;

use serde_json::Value;

use crate::checkpoint::config_json::ConfigJson;
use crate::error::{Result, from_name};

/// Keys in Whisper's `generation_config.json` that change no token for audio with a single segment: keys for timestamps, for
/// longer audio and for temperature fallback.
pub(super) const UNCHANGING: &[&str] = &[
    "compression_ratio_threshold",
    "condition_on_prev_tokens",
    "force_unique_generate_call",
    "forced_decoder_ids", // older than language and task, which take precedence
    "is_multilingual",
    "lang_to_id",
    "logprob_threshold",
    "max_initial_timestamp_index",
    "prompt_condition_type",
    "task_to_id",
];

/// The prompt of a speech decoder after [`GenerationOptions::decoder_start`](super::GenerationOptions::decoder_start).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpeechStart {
    /// `lang_to_id`: the model selects the first token among these, if the files name no language.
    pub languages: Vec<u32>,
    /// The tokens of the language (unless the model selects it), of the task, and `no_timestamps_token_id`.
    pub tokens: Vec<u32>,
}

/// The kind of transcript.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpeechTask {
    /// A transcript in the language that is spoken.
    Transcribe,
    /// A translation to English.
    Translate,
}

/// A token in the prompt.
#[derive(Clone, Copy, PartialEq)]
enum Said {
    Token(u32),
    /// The most likely language.
    Detected,
    Nothing,
}

impl SpeechTask {
    /// Returns transformers' name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Transcribe => "transcribe",
            Self::Translate => "translate",
        }
    }
}

from_name!(SpeechTask, "task", "transcribe" => Self::Transcribe, "translate" => Self::Translate);

impl SpeechStart {
    /// Reads the keys of `generation_config.json`, and the older key that `config.json` may hold.
    ///
    /// # Errors
    /// If a language or task is unknown, or a key requests timestamps or silence detection.
    pub(super) fn read(json: &ConfigJson, config: &ConfigJson) -> Result<Self> {
        refuse(json)?;
        let languages: Option<BTreeMap<String, u32>> = json.parsed("lang_to_id")?;
        let tasks: Option<BTreeMap<String, u32>> = json.parsed("task_to_id")?;
        let (language, task) = (language(json)?, json.text(&["task"])?);
        let mut said = match (&language, &task) {
            (None, None) => forced(json, config)?,
            _ => Vec::new(),
        };
        let is_undefined = said.first().is_none_or(|&first| first == Said::Nothing);
        let first = match (&language, &languages) {
            (Some(name), known) => Some(Said::Token(language_token(json, name, known.as_ref())?)),
            (None, Some(_)) if is_undefined => Some(Said::Detected),
            (None, _) => None,
        };
        match (first, said.first_mut()) {
            (Some(first), Some(place)) => *place = first,
            (Some(first), None) => said.push(first),
            (None, _) => {}
        }
        match (task.as_deref(), &tasks) {
            (Some(task), tasks) => said.push(Said::Token(task_token(json, task, tasks.as_ref())?)),
            (None, Some(tasks)) if language.is_some() => {
                let has_task = |said: &Said| tasks.values().any(|&id| *said == Said::Token(id));
                if !said.iter().any(has_task) {
                    said.push(Said::Token(task_token(json, "transcribe", Some(tasks))?));
                }
            }
            (None, _) => {}
        }
        if let Some(id) = json.parsed("no_timestamps_token_id")?.map(Said::Token)
            && said.last() != Some(&id)
        {
            said.push(id);
        }
        let token = |said: &Said| match said {
            Said::Token(id) => Some(*id),
            Said::Detected | Said::Nothing => None,
        };
        let detects = said.contains(&Said::Detected);
        let languages = languages.filter(|_| detects).unwrap_or_default();
        Ok(Self {
            languages: languages.into_values().collect(),
            tokens: said.iter().filter_map(token).collect(),
        })
    }
}

/// Refuses keys for timestamps and silence detection.
fn refuse(json: &ConfigJson) -> Result<()> {
    let unsupported = |key: &str, what: &str| {
        let value = json.at(key).unwrap_or(&Value::Null);
        let reason = format!("{value} requests {what}, which is not supported; remove the key");
        Err(json.error(&[key], reason))
    };
    if json.flag(&["return_timestamps"], false)? {
        return unsupported("return_timestamps", "timestamps");
    }
    if json.flag(&["return_token_timestamps"], false)? {
        return unsupported("return_token_timestamps", "timestamps of tokens");
    }
    match json.at("no_speech_threshold") {
        None | Some(Value::Null) => Ok(()),
        Some(_) => unsupported("no_speech_threshold", "silence detection"),
    }
}

fn language(json: &ConfigJson) -> Result<Option<String>> {
    match json.at("language") {
        Some(Value::Array(_)) => {
            let reason = "a list with a language for each row of a batch is not supported; set one \
             language, or remove the key to have it detected";
            Err(json.error(&["language"], reason.to_string()))
        }
        _ => json.text(&["language"]),
    }
}

/// Returns the tokens in `forced_decoder_ids`, pairs of a position from 1 on and a token or null.
fn forced(json: &ConfigJson, config: &ConfigJson) -> Result<Vec<Said>> {
    const KEY: &str = "forced_decoder_ids";
    let own: Option<Vec<(usize, Option<u32>)>> = json.parsed(KEY)?;
    let (file, pairs) = match own {
        Some(pairs) => (json, pairs),
        None => (config, config.parsed(KEY)?.unwrap_or_default()),
    };
    // A list that begins at another position is ignored, as in transformers.
    if pairs.first().is_none_or(|&(place, _)| place != 1) {
        return Ok(Vec::new());
    }
    if let Some((expected, (found, _))) = (1..).zip(&pairs).find(|(at, (place, _))| at != place) {
        let reason = format!("the positions continue with {found}, expected {expected}");
        return Err(file.error(&[KEY], reason));
    }
    let said = |(_, token): (usize, Option<u32>)| token.map_or(Said::Nothing, Said::Token);
    Ok(pairs.into_iter().map(said).collect())
}

/// Returns a language's token, given its text, its code or its name.
fn language_token(
    json: &ConfigJson,
    name: &str,
    known: Option<&BTreeMap<String, u32>>,
) -> Result<u32> {
    let fail = |reason: String| Err(json.error(&["language"], reason));
    let Some(known) = known else {
        return fail(format!("found {name:?}, but lang_to_id is missing"));
    };
    if let Some(&id) = known.get(&name.to_lowercase()) {
        return Ok(id);
    }
    let code = code_of(name).map_err(|reason| json.error(&["language"], reason))?;
    match known.get(&format!("<|{code}|>")) {
        Some(&id) => Ok(id),
        None => fail(format!("found {name:?}, but lang_to_id has no <|{code}|>")),
    }
}

/// Returns Whisper's languages, each with its code and its name.
fn languages() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = include_str!("languages.txt").lines();
    lines.filter_map(|line| line.split_once(": "))
}

/// Returns a language's code, given its name or the code itself, or why there is none.
pub(super) fn code_of(name: &str) -> std::result::Result<&'static str, String> {
    let lower = name.to_lowercase();
    let found = languages().find(|(code, of)| *code == lower || *of == lower);
    found.map(|(code, _)| code).ok_or_else(|| {
        format!("found {name:?}, expected a language of Whisper, such as \"german\" or \"de\"")
    })
}

/// Returns the language that a token such as `<|en|>` names.
#[cfg(feature = "media")]
pub(crate) fn language_of_token(text: &str) -> Option<&'static str> {
    let code = text.get(2..text.len().checked_sub(2)?)?;
    let found = languages().find(|(known, _)| *known == code);
    found.map(|(_, name)| name)
}

fn task_token(json: &ConfigJson, task: &str, known: Option<&BTreeMap<String, u32>>) -> Result<u32> {
    if task.parse::<SpeechTask>().is_err() {
        let reason = format!("found {task:?}, expected \"transcribe\" or \"translate\"");
        return Err(json.error(&["task"], reason));
    }
    match known.and_then(|known| known.get(task)) {
        Some(&id) => Ok(id),
        None => Err(json.error(
            &["task_to_id"],
            format!("has no token for the task {task:?}"),
        )),
    }
}
