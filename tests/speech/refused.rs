//! Audio, settings and models that are refused.

use candle_blocks::speech::{Audio, PromptCondition, SpeechOptions, TimestampKind, Transcriber};

use crate::sounds::samples;
use crate::weights::{is_present, weights};

/// Demands an error with these words.
#[track_caller]
fn assert_refused<T>(result: candle_blocks::Result<T>, words: &[&str]) {
    let Err(error) = result else {
        panic!("it was accepted");
    };
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn audio_that_does_not_fit_the_model_is_refused() {
    if !is_present("speech") {
        return;
    }
    let transcriber = Transcriber::open(weights("speech/whisper")).unwrap();
    for (samples, rate) in [(samples(1, 100), 8000), (Vec::new(), 16000)] {
        let sound = Audio { samples, rate };
        assert_refused(transcriber.transcribe(&sound), &["audio", "16000"]);
    }
    let missing = transcriber.transcribe_file("missing.wav");
    assert_refused(missing, &["missing.wav"]);
}

#[test]
fn models_and_settings_without_speech_are_refused_by_name() {
    if !is_present("speech") {
        return;
    }
    assert_refused(Transcriber::open(weights("tiny-bert")), &["speech"]);
    let odd = SpeechOptions::default().language("klingon");
    let odd = odd.transcriber(weights("speech/whisper"));
    assert_refused(odd, &["found \"klingon\"", "such as \"german\""]);

    let folder = tempfile::tempdir().unwrap();
    for name in [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        let from = weights("speech/whisper").join(name);
        std::fs::copy(from, folder.path().join(name)).unwrap();
    }
    assert_refused(
        Transcriber::open(folder.path()),
        &["preprocessor_config.json"],
    );
    let settings = r#"{"feature_size": 80, "chunk_length": 2}"#;
    std::fs::write(folder.path().join("preprocessor_config.json"), settings).unwrap();
    assert_refused(
        Transcriber::open(folder.path()),
        &["feature_size", "8 bands"],
    );
    let settings = r#"{"feature_size": 8, "chunk_length": 2}"#;
    std::fs::write(folder.path().join("preprocessor_config.json"), settings).unwrap();
    let timed = SpeechOptions::default().timestamps(TimestampKind::Segment);
    assert_refused(
        timed.transcriber(folder.path()),
        &["no_timestamps_token_id"],
    );

    let path = weights("speech/whisper/generation_config.json");
    let keys = std::fs::read_to_string(path).unwrap();
    let silent = keys.replacen('{', "{\"no_speech_threshold\": 0.6,", 1);
    std::fs::write(folder.path().join("generation_config.json"), silent).unwrap();
    let silent = Transcriber::open(folder.path());
    assert_refused(
        silent,
        &["no_speech_threshold", "needs a logprob_threshold"],
    );
    let keys = keys.replace("\"no_timestamps_token_id\"", "\"another_id\"");
    std::fs::write(folder.path().join("generation_config.json"), keys).unwrap();
    let timed = SpeechOptions::default().timestamps(TimestampKind::Segment);
    let timed = timed.transcriber(folder.path());
    assert_refused(timed, &["no_timestamps_token_id", "missing"]);
    // A clip that is longer than the window needs timestamps, a shorter one does not.
    let transcriber = Transcriber::open(folder.path()).unwrap();
    let clip = |n| Audio {
        samples: samples(1, n),
        rate: 16000,
    };
    transcriber.transcribe(&clip(8000)).unwrap();
    let long = transcriber.transcribe(&clip(40000));
    assert_refused(long, &["longer than", "no_timestamps_token_id"]);
}

#[test]
fn settings_for_windows_that_do_not_fit_are_refused_by_name() {
    if !is_present("speech") {
        return;
    }
    let model = weights("speech/whisper");
    let options = SpeechOptions::default;
    let all = PromptCondition::AllSegments;
    for (options, words) in [
        (options().temperatures([]), ["temperatures", "one or more"]),
        (
            options().temperatures([0.0, -0.2]),
            ["temperatures", "-0.2"],
        ),
        (options().prompt("a <|en|> b"), ["prompt", "<|en|>"]),
        (
            options().prompt("a").prompt_condition(all),
            ["all-segments", "condition_on_prev_tokens"],
        ),
        (options().prompt("a ".repeat(50)), ["prompt", "positions"]),
    ] {
        let clip = Audio {
            samples: samples(1, 8000),
            rate: 16000,
        };
        let transcribed = options
            .transcriber(&model)
            .and_then(|open| open.transcribe(&clip));
        assert_refused(transcribed, &words);
    }
    let of_characters = options()
        .prompt("a")
        .transcriber(weights("speech/wav2vec2"));
    assert_refused(of_characters, &["CTC head", "prompts"]);
}
