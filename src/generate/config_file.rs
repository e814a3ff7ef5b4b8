//! Reads a checkpoint's `generation_config.json`: every key of transformers' `GenerationConfig` is followed, changes
//! nothing, or is refused.

use std::path::Path;

use serde_json::Value;

use super::{
    BeamOptions, EarlyStopping, GenerationOptions, Sampling, SpeechRequest, SpeechStart, speech,
};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::config_json::ConfigJson;
use crate::error::{Error, Result};

/// Keys that change no token: the speed of transformers, additional outputs, settings for assisted generation with a draft
/// model, and settings for kinds of generation that are refused when requested.
const UNCHANGING: &[&str] = &[
    "_commit_hash",
    "_from_model_config",
    "_name_or_path",
    "alignment_heads",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_ensemble_weight",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "compile_config",
    "continuous_batching_config",
    "disable_compile",
    "diversity_penalty",
    "low_memory",
    "max_cache_len",
    "max_matching_ngram_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_beam_groups",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "penalty_alpha",
    "prev_sot_token_id",
    "prompt_lookup_num_tokens",
    "return_dict_in_generate",
    "speculation_type",
    "target_lookbehind",
    "transformers_version",
    "use_cache",
    "use_mtp",
];

/// Keys that change tokens in unsupported ways, with the values that change nothing.
const REFUSED: &[(&str, &[Value])] = &[
    ("constraints", &[]),
    ("dola_layers", &[]),
    ("force_words_ids", &[]),
    ("is_assistant", &[Value::Bool(false)]),
    ("token_healing", &[Value::Bool(false)]),
    ("watermarking_config", &[]),
];

/// Generation keys that a `config.json` may contain, or its decoder's section.
const OF_CONFIG: &[&str] = &[
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "decoder_start_token_id",
    "do_sample",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_repetition_penalty",
    "eos_token_id",
    "epsilon_cutoff",
    "eta_cutoff",
    "exponential_decay_length_penalty",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "guidance_scale",
    "length_penalty",
    "max_length",
    "max_new_tokens",
    "max_time",
    "min_length",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "pad_token_id",
    "penalty_alpha",
    "remove_invalid_values",
    "renormalize_logits",
    "repetition_penalty",
    "sequence_bias",
    "stop_strings",
    "suppress_tokens",
    "temperature",
    "top_h",
    "top_k",
    "top_p",
    "typical_p",
];

impl GenerationOptions {
    /// Reads the settings from the checkpoint's `generation_config.json`, or without it from its `config.json`. A GGUF file
    /// has its own settings ([`FilesBeside`](crate::checkpoint::FilesBeside)).
    ///
    /// # Errors
    /// If the file cannot be read, a value has the wrong type, or the file requests an unsupported kind of generation.
    pub fn of(checkpoint: &Checkpoint) -> Result<Self> {
        Ok(Self {
            context_length: checkpoint.context_length()?,
            ..options_of_files(checkpoint, None)?
        })
    }

    /// Reads the settings like [`Self::of`] for a transcription with Whisper. Like transformers' pipeline for speech, it uses 5
    /// beams and at most 256 new tokens if the files do not set `num_beams`, and neither `max_length` nor `max_new_tokens`.
    ///
    /// # Errors
    /// The errors of [`Self::of`]; also if the model is no speech model with a decoder, or lacks the tokens for the request.
    pub fn of_speech(checkpoint: &Checkpoint, request: &SpeechRequest) -> Result<Self> {
        let options = options_of_files(checkpoint, Some(request))?;
        match &options.speech {
            Some(_) => Ok(options),
            None => Err(Error::InvalidConfig(format!(
                "{}: expected a speech model: model_type \"whisper\" in config.json, or one with a CTC head",
                checkpoint.files().path().display()
            ))),
        }
    }
}

fn options_of_files(
    checkpoint: &Checkpoint,
    request: Option<&SpeechRequest>,
) -> Result<GenerationOptions> {
    if let Some(json) = checkpoint.own_generation_config()? {
        let mut options = read(&json)?;
        note_unread(&mut options, &json, checkpoint.files().path(), &[]);
        return Ok(options);
    }
    let folder = checkpoint.files().directory();
    let config = ConfigJson::open_named(&folder.join("config.json"))?;
    let path = folder.join("generation_config.json");
    let model_type = config.as_ref().map(|json| json.text(&["model_type"]));
    let speaks = model_type.transpose()?.flatten().as_deref() == Some("whisper");
    let mut options = match (ConfigJson::open_named(&path)?, &config) {
        (Some(json), _) => {
            let json = request.map_or(Ok(json.clone()), |request| request.applied(&json))?;
            let mut options = read(&json)?;
            if let Some(config) = config.as_ref().filter(|_| speaks) {
                begin_speech(&mut options, &json, config, request)?;
            }
            let speech_keys = if speaks { speech::UNCHANGING } else { &[] };
            note_unread(&mut options, &json, &path, speech_keys);
            options
        }
        (None, Some(config)) => {
            let json = of_config(config)?;
            let json = request.map_or(Ok(json.clone()), |request| request.applied(&json))?;
            let mut options = read(&json)?;
            if speaks {
                let none = ConfigJson::given(&path, Value::Object(serde_json::Map::new()));
                begin_speech(&mut options, &none, config, request)?;
            }
            options
        }
        (None, None) => GenerationOptions::default(),
    };
    if let Some(config) = config {
        let keys = ["max_position_embeddings", "n_positions"];
        options.positions = config.optional_size(&keys)?;
    }
    Ok(options)
}

/// Adds a note on keys that nothing has read.
fn note_unread(options: &mut GenerationOptions, json: &ConfigJson, path: &Path, harmless: &[&str]) {
    let unread = json.unread(&[UNCHANGING, harmless].concat());
    if !unread.is_empty() {
        options.notes.push(format!(
            "{} sets {}, which generation does not follow",
            path.display(),
            unread.join(", ")
        ));
    }
}

/// Applies Whisper's keys; its `max_length` does not count the decoder's initial tokens.
fn begin_speech(
    options: &mut GenerationOptions,
    json: &ConfigJson,
    config: &ConfigJson,
    request: Option<&SpeechRequest>,
) -> Result<()> {
    options.speech = Some(SpeechStart::read(json, config)?);
    if let Some(request) = request {
        request.set_timestamps(json, options)?;
    }
    let length = options.max_length.take();
    options.max_new_tokens = options.max_new_tokens.or(length);
    Ok(())
}

/// Returns a `config.json` with the generation keys of its decoder's section.
fn of_config(config: &ConfigJson) -> Result<ConfigJson> {
    let mut json = config.clone();
    for name in ["decoder", "generator", "text_config"] {
        let Some(section) = config.section(&[name])? else {
            continue;
        };
        for key in OF_CONFIG {
            if config.at(key).is_none_or(Value::is_null)
                && let Some(value) = section.at(key)
            {
                json = json.without(key).with_default(key, value.clone());
            }
        }
        break;
    }
    let forces_first = json.flag(&["force_bos_token_to_be_generated"], false)?;
    if let Some(first) = json.at("bos_token_id").filter(|_| forces_first) {
        let first = first.clone();
        json = json.without("forced_bos_token_id");
        json = json.with_default("forced_bos_token_id", first);
    }
    Ok(json)
}

fn read(json: &ConfigJson) -> Result<GenerationOptions> {
    let default = GenerationOptions::default();
    let first = |key| one_token(json, key);
    let stop_tokens = tokens(json, "eos_token_id")?;
    let draws = json.flag(&["do_sample"], false)?;
    let sampling = sampling(json)?;
    let mut notes = Vec::new();
    let beams = beams(json, draws, &mut notes)?;
    refuse(json, beams.beams, draws)?;
    Ok(GenerationOptions {
        max_new_tokens: json.optional_size(&["max_new_tokens"])?,
        max_length: json.optional_size(&["max_length"])?,
        min_new_tokens: json.optional_size(&["min_new_tokens"])?,
        min_length: json.size_or(&["min_length"], 0)?,
        max_time: json.optional_number(&["max_time"])?,
        stop_strings: strings(json, "stop_strings")?,
        pad_token: first("pad_token_id")?.or(stop_tokens.first().copied()),
        decoder_start: first("decoder_start_token_id")?.or(first("bos_token_id")?),
        suppressed: tokens(json, "suppress_tokens")?,
        suppressed_first: tokens(json, "begin_suppress_tokens")?,
        forced_first: first("forced_bos_token_id")?,
        forced_last: tokens(json, "forced_eos_token_id")?,
        repetition_penalty: penalty(json, "repetition_penalty")?,
        encoder_repetition_penalty: penalty(json, "encoder_repetition_penalty")?,
        no_repeat_ngram: json.size_or(&["no_repeat_ngram_size"], 0)?,
        encoder_no_repeat_ngram: json.size_or(&["encoder_no_repeat_ngram_size"], 0)?,
        bad_words: words(json)?,
        sequence_bias: biases(json)?,
        length_decay: length_decay(json)?,
        remove_invalid: json.flag(&["remove_invalid_values"], false)?,
        renormalize: json.flag(&["renormalize_logits"], false)?,
        beams,
        sampling,
        recommended: draws.then_some(sampling),
        stop_tokens,
        notes,
        ..default
    })
}

/// Refuses unsupported kinds of generation.
fn refuse(json: &ConfigJson, beams: usize, draws: bool) -> Result<()> {
    for (key, allowed) in REFUSED {
        if let Some(value) = json.at(key).filter(|value| !value.is_null())
            && !allowed.contains(value)
        {
            return Err(unsupported(json, key, value));
        }
    }
    let number = |key| json.optional_number(&[key]);
    let changing = [
        (
            "guidance_scale",
            number("guidance_scale")?.is_some_and(|scale| scale != 1.0),
        ),
        (
            "num_beam_groups",
            beams > 1 && number("num_beam_groups")?.is_some_and(|groups| groups > 1.0),
        ),
        // Contrastive search.
        (
            "penalty_alpha",
            beams == 1
                && !draws
                && number("penalty_alpha")?.is_some_and(|alpha| alpha > 0.0)
                && number("top_k")?.unwrap_or(50.0) > 1.0,
        ),
        (
            "cache_implementation",
            json.at("cache_implementation")
                .is_some_and(|kind| kind == "quantized"),
        ),
    ];
    match changing.iter().find(|(_, changes)| *changes) {
        Some((key, _)) => Err(unsupported(json, key, json.at(key).unwrap_or(&Value::Null))),
        None => Ok(()),
    }
}

fn unsupported(json: &ConfigJson, key: &str, value: &Value) -> Error {
    let reason =
        format!("{value} requests a kind of generation that is not supported; remove the key");
    json.error(&[key], reason)
}

/// Returns transformers' defaults, overridden by the file.
fn sampling(json: &ConfigJson) -> Result<Sampling> {
    let number = |key: &'static str| json.optional_number(&[key]);
    let cutoff = |key| Ok::<_, Error>(number(key)?.filter(|&p| p > 0.0 && p < 1.0));
    let top_k = json.optional_size(&["top_k"])?.unwrap_or(50);
    Ok(Sampling {
        top_h: number("top_h")?,
        top_k: Some(top_k).filter(|&k| k > 0),
        top_p: number("top_p")?.filter(|&p| p < 1.0),
        min_p: number("min_p")?,
        typical_p: number("typical_p")?.filter(|&mass| mass < 1.0),
        epsilon_cutoff: cutoff("epsilon_cutoff")?,
        eta_cutoff: cutoff("eta_cutoff")?,
        ..Sampling::at(number("temperature")?.unwrap_or(1.0))
    })
}

fn beams(json: &ConfigJson, draws: bool, notes: &mut Vec<String>) -> Result<BeamOptions> {
    let beams = json.size_or(&["num_beams"], 1)?;
    let mut returned = json.size_or(&["num_return_sequences"], 1)?;
    if draws && beams == 1 && returned > 1 {
        notes.push(format!(
            "num_return_sequences is {returned}, but each prompt is continued once; give it several times"
        ));
        returned = 1;
    }
    let early_stopping = match json.at("early_stopping") {
        None | Some(Value::Null | Value::Bool(false)) => EarlyStopping::Likely,
        Some(Value::Bool(true)) => EarlyStopping::Always,
        Some(Value::String(never)) if never == "never" => EarlyStopping::Never,
        Some(other) => {
            let reason = format!("found {other}, expected true, false or \"never\"");
            return Err(json.error(&["early_stopping"], reason));
        }
    };
    let beams = BeamOptions {
        beams,
        length_penalty: json.number(&["length_penalty"], 1.0)?,
        early_stopping,
        returned,
    };
    let invalid =
        |error: Error| json.error(&["num_beams", "num_return_sequences"], error.to_string());
    beams.validate().map_err(invalid)?;
    Ok(beams)
}

fn penalty(json: &ConfigJson, key: &'static str) -> Result<f64> {
    match json.number(&[key], 1.0)? {
        penalty if penalty > 0.0 && penalty.is_finite() => Ok(penalty),
        found => Err(json.error(&[key], format!("found {found}, expected a number above 0"))),
    }
}

/// Reads one token or a list of tokens. A negative value is no token, and never occurs.
fn tokens(json: &ConfigJson, key: &str) -> Result<Vec<u32>> {
    match json.parsed::<Value>(key)? {
        None => Ok(Vec::new()),
        Some(value) => token_list(&value).ok_or_else(|| {
            let reason = format!("found {value}, expected a token id or a list of them");
            json.error(&[key], reason)
        }),
    }
}

fn token_list(value: &Value) -> Option<Vec<u32>> {
    let all = match value {
        Value::Array(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    let ids: Vec<i64> = all.iter().map(Value::as_i64).collect::<Option<_>>()?;
    let tokens = ids.into_iter().filter(|&id| id >= 0);
    tokens.map(|id| u32::try_from(id).ok()).collect()
}

fn one_token(json: &ConfigJson, key: &str) -> Result<Option<u32>> {
    match tokens(json, key)?.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(*one)),
        several => Err(json.error(&[key], format!("found {several:?}, expected one token"))),
    }
}

fn strings(json: &ConfigJson, key: &'static str) -> Result<Vec<String>> {
    match json.at(key) {
        Some(Value::String(_)) => Ok(json.text(&[key])?.into_iter().collect()),
        _ => Ok(json.texts(&[key])?.unwrap_or_default()),
    }
}

fn words(json: &ConfigJson) -> Result<Vec<Vec<u32>>> {
    Ok(json.parsed("bad_words_ids")?.unwrap_or_default())
}

fn biases(json: &ConfigJson) -> Result<Vec<(Vec<u32>, f32)>> {
    let biases: Option<Vec<(Vec<u32>, f32)>> = json.parsed("sequence_bias")?;
    Ok(biases.unwrap_or_default())
}

fn length_decay(json: &ConfigJson) -> Result<Option<(usize, f64)>> {
    json.parsed("exponential_decay_length_penalty")
}
