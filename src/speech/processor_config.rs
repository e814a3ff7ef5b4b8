//! The settings that a model's files have for sound: `preprocessor_config.json`.

use std::path::Path;

use candle_blocks_media::sound::{LogMelSettings, Normalization, WaveformSettings};

use crate::checkpoint::config_json::ConfigJson;
use crate::error::Result;

/// Opens the settings: `preprocessor_config.json`, or the section `feature_extractor` of `processor_config.json`, which
/// transformers 5 writes.
///
/// # Errors
/// If there is neither, or a file is malformed.
pub(super) fn open(folder: &Path) -> Result<ConfigJson> {
    let path = folder.join("preprocessor_config.json");
    if let Some(json) = ConfigJson::open_named(&path)? {
        return Ok(json);
    }
    if let Some(json) = ConfigJson::open_named(&folder.join("processor_config.json"))?
        && let Some(section) = json.section(&["feature_extractor"])?
    {
        return Ok(section);
    }
    ConfigJson::open(&path)
}

/// Reads Whisper's settings.
///
/// # Errors
/// If a value has the wrong type, or requests what is not supported.
pub(super) fn log_mel(json: &ConfigJson) -> Result<LogMelSettings> {
    json.only(
        "feature_extractor_type",
        &["WhisperFeatureExtractor".into()],
    )?;
    json.only("dither", &[0.0.into(), 0.into()])?;
    json.only("padding_value", &[0.0.into(), 0.into()])?;
    let default = LogMelSettings::default();
    Ok(LogMelSettings {
        n_mels: json.size_or(&["feature_size"], default.n_mels)?,
        rate: rate(json)?,
        hop: json.size_or(&["hop_length"], default.hop)?,
        chunk_seconds: json.size_or(&["chunk_length"], default.chunk_seconds)?,
        n_fft: json.size_or(&["n_fft"], default.n_fft)?,
    })
}

/// Reads the settings for wav2vec 2.0 and its relatives.
///
/// # Errors
/// If a value has the wrong type, or requests what is not supported.
pub(super) fn waveform(json: &ConfigJson) -> Result<WaveformSettings> {
    json.only(
        "feature_extractor_type",
        &["Wav2Vec2FeatureExtractor".into()],
    )?;
    json.only("feature_size", &[1.into()])?;
    Ok(WaveformSettings {
        rate: rate(json)?,
        normalization: match json.flag(&["do_normalize"], true)? {
            true => Normalization::ZeroMeanUnitVariance,
            false => Normalization::None,
        },
    })
}

fn rate(json: &ConfigJson) -> Result<u32> {
    let rate = json.size_or(&["sampling_rate"], 16_000)?;
    u32::try_from(rate).map_err(|_| json.error(&["sampling_rate"], format!("found {rate}")))
}
