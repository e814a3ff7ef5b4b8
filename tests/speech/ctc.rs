//! Transcripts of models with a CTC head.

use std::fs;

use candle_blocks::candle_core::{Device, safetensors};
use candle_blocks::speech::{SpeechOptions, TimestampKind, Transcriber};

use crate::judged::assert_as_judged;
use crate::weights::{is_present, weights};

#[test]
fn transcripts_of_every_family_are_those_of_transformers() {
    if !is_present("speech") {
        return;
    }
    for name in [
        "wav2vec2",
        "wav2vec2-stable",
        "hubert",
        "hubert-stable",
        "data2vec-audio",
        "wavlm",
        "wavlm-stable",
    ] {
        assert_as_judged(&format!("speech/{name}"), 35);
    }
}

#[test]
fn each_language_has_its_own_adapter_and_vocabulary() {
    if !is_present("speech") {
        return;
    }
    assert_as_judged("speech/wav2vec2-mms", 21);
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str| weights("speech/wav2vec2-mms").join(name);
    for entry in fs::read_dir(of("")).unwrap() {
        let name = entry.unwrap().file_name();
        let name = name.to_str().unwrap();
        fs::copy(of(name), folder.path().join(name)).unwrap();
    }
    let open = |language: &str| {
        let options = SpeechOptions::default().language(language);
        options.transcriber(folder.path()).unwrap_err().to_string()
    };
    let error = open("deu");
    assert!(
        error.contains("adapter.deu.safetensors: there is no such file"),
        "{error}"
    );
    let adapter = |to: &str| folder.path().join(format!("adapter.{to}.safetensors"));
    fs::copy(adapter("fra"), adapter("deu")).unwrap();
    let error = open("deu");
    assert!(
        error.contains("no vocabulary for the language \"deu\""),
        "{error}"
    );
    let tensors = safetensors::load(adapter("fra"), &Device::Cpu).unwrap();
    let last = "wav2vec2.encoder.layers.1.adapter_layer.linear_2.bias";
    for (name, word) in [
        (Some(last), "is missing"),
        (None, "no tensor with this name"),
    ] {
        let mut changed = tensors.clone();
        match name {
            Some(name) => drop(changed.remove(name).unwrap()),
            None => drop(changed.insert("other".to_string(), tensors[last].clone())),
        }
        safetensors::save(&changed, adapter("fra")).unwrap();
        let error = open("fra");
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn options_that_only_whisper_has_are_refused() {
    if !is_present("speech") {
        return;
    }
    let folder = weights("speech/wav2vec2");
    let default = SpeechOptions::default;
    for (options, word) in [
        (default().timestamps(TimestampKind::Segment), "segments"),
        (default().language("german"), "languages"),
        (default().beams(2), "beams"),
        (default().stride_length_s([1.0, 1.0]), "chunk_length_s too"),
        (
            default().chunk_length_s(2.0).stride_length_s([1.0, 1.0]),
            "longer windows than both",
        ),
        (default().chunk_length_s(f64::NAN), "windows of NaN s"),
    ] {
        let error = options.transcriber(&folder).unwrap_err().to_string();
        assert!(error.contains(word), "{error}");
    }
    let short = candle_blocks::speech::Audio {
        samples: vec![0.5; 100],
        rate: 16000,
    };
    let found = Transcriber::open(&folder).unwrap().transcribe(&short);
    let error = found.unwrap_err().to_string();
    assert!(
        error.contains("has 100 samples, expected at least"),
        "{error}"
    );
}
