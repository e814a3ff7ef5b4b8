//! Transcripts of models with a CTC head.

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
    ] {
        assert_as_judged(&format!("speech/{name}"), 35);
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
