//! A caller's wishes for a transcript, beside a speech model's `generation_config.json`.

use super::{GenerationOptions, SpeechTask, TimestampRules, speech::code_of};
use crate::checkpoint::config_json::ConfigJson;
use crate::error::{Error, Result, setters};

/// The defaults of transformers' `AutomaticSpeechRecognitionPipeline` for settings that the files lack.
const DEFAULT_BEAMS: usize = 5;
const DEFAULT_NEW_TOKENS: usize = 256;

/// A caller's wishes for a transcript, which replace keys of `generation_config.json`. Pass it to
/// [`GenerationOptions::of_speech`](crate::generate::GenerationOptions::of_speech).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct SpeechRequest {
    language: Option<String>,
    task: Option<SpeechTask>,
    timestamps: Timestamps,
}

/// The timestamp tokens that the model writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Timestamps {
    #[default]
    None,
    Written,
}

impl SpeechRequest {
    setters! {
        /// Sets the language that is spoken, by its name or code; without it, the model detects one of its languages.
        with_language(language: impl Into<String>) => language = Some(language.into());
        /// Sets the task; without it, the files set one, and published models transcribe.
        with_task(task: SpeechTask) => task = Some(task);
    }

    /// Returns the language, if the request has nothing else.
    #[cfg(feature = "media")]
    pub(crate) fn language_alone(&self) -> Option<&str> {
        let alone = self.language.as_deref()?;
        (*self == Self::default().with_language(alone)).then_some(alone)
    }

    /// Makes the model write timestamps, by which a transcript is cut into segments.
    pub fn with_timestamps(mut self) -> Self {
        self.timestamps = Timestamps::Written;
        self
    }

    /// Returns the keys of a `generation_config.json` with the caller's.
    ///
    /// # Errors
    /// If a model for English alone is given a language or a task, or a language is unknown.
    pub(super) fn applied(&self, json: &ConfigJson) -> Result<ConfigJson> {
        let says = self.language.is_some() || self.task.is_some();
        if says && !json.flag(&["is_multilingual"], true)? {
            let reason = "false, but a language or a task was given, which a model for English alone does not have; leave \
                          them out";
            return Err(json.error(&["is_multilingual"], reason));
        }
        if let Some(name) = &self.language
            && !name.starts_with("<|")
        {
            code_of(name).map_err(|reason| Error::input("language", reason))?;
        }
        let mut json = json.clone();
        let is_set = |key: &str| json.at(key).is_some_and(|value| !value.is_null());
        let sets_length = is_set("max_length") || is_set("max_new_tokens");
        let missing = [
            (!is_set("num_beams")).then_some(("num_beams", DEFAULT_BEAMS)),
            (!sets_length).then_some(("max_new_tokens", DEFAULT_NEW_TOKENS)),
        ];
        for (key, default) in missing.into_iter().flatten() {
            json = json.with(key, default);
        }
        // A transcriber detects silence itself.
        json = json.without("no_speech_threshold");
        // The request decides about timestamps.
        for key in ["return_timestamps", "return_token_timestamps"] {
            if json.at(key).is_some() {
                json = json.with(key, false);
            }
        }
        if let Some(language) = &self.language {
            json = json.with("language", language.as_str());
        }
        if let Some(task) = self.task {
            json = json.with("task", task.name());
        }
        Ok(json)
    }

    /// Removes "no timestamps" from the prompt and sets the rules, if timestamps are requested.
    ///
    /// # Errors
    /// If the files do not name the tokens.
    pub(super) fn set_timestamps(
        &self,
        json: &ConfigJson,
        options: &mut GenerationOptions,
    ) -> Result<()> {
        if self.timestamps == Timestamps::None {
            return Ok(());
        }
        let key = "no_timestamps_token_id";
        let Some(no_timestamps) = json.parsed::<u32>(key)? else {
            return Err(json.error(&[key], "missing; timestamps need it"));
        };
        let Some(&end) = options.stop_tokens.first() else {
            return Err(json.error(&["eos_token_id"], "missing; timestamps need it"));
        };
        if let Some(speech) = &mut options.speech
            && speech.tokens.last() == Some(&no_timestamps)
        {
            speech.tokens.pop();
        }
        options.timestamps = Some(TimestampRules {
            no_timestamps,
            end,
            max_initial: json.optional_size(&["max_initial_timestamp_index"])?,
        });
        Ok(())
    }
}
