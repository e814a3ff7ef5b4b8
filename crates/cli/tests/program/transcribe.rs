//! `candle-blocks transcribe`: transcripts of files as lines, texts and subtitles.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::hub_server::{Files, Repo, Server};
use crate::scratch::{Answer, answer, program};
use crate::sounds::samples;
use crate::wav::{Encoding, wav};
use crate::weights::{is_present, weights};

/// Runs the program on files in a folder, with Whisper.
fn transcribed(folder: &Path, files: &[&str], more: &[&str]) -> Answer {
    let mut command = program();
    command.current_dir(folder).arg("transcribe");
    command.arg("--model").arg(weights("speech/whisper"));
    answer(command.args(files).args(more))
}

/// Writes WAV files, and returns transformers' results for the case with these keys.
fn prepared(folder: &Path, keys: &Value) -> Vec<Value> {
    let bytes = fs::read(weights("speech/whisper/results.json")).unwrap();
    let judged: Value = serde_json::from_slice(&bytes).unwrap();
    for (i, sound) in judged["sounds"].as_array().unwrap().iter().enumerate() {
        let number = |at: usize| sound[at].as_u64().unwrap() as usize;
        let encoding = [Encoding::Pcm16, Encoding::Float][i % 2];
        let file = wav(encoding, 1, 16000, &samples(number(0), number(1)));
        fs::write(folder.join(format!("{i}.wav")), file).unwrap();
    }
    let mut cases = judged["cases"].as_array().unwrap().iter();
    let is_it = |case: &&Value| {
        let mut case = (*case).clone();
        case.as_object_mut().unwrap().remove("results");
        case == *keys
    };
    let case = cases.find(is_it).unwrap();
    case["results"].as_array().unwrap().clone()
}

#[test]
fn a_line_for_each_file_is_that_of_transformers() {
    if !is_present("speech") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let keys = serde_json::json!({"num_beams": 1, "return_timestamps": true});
    let expected = prepared(folder.path(), &keys);
    let more = ["--beams", "1", "--timestamps", "segment"];
    let found = transcribed(folder.path(), &["0.wav", "5.wav"], &more);
    found.assert_status(0);
    let lines: Vec<Value> = found
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 2);
    for (line, expected) in lines.iter().zip([&expected[0], &expected[5]]) {
        assert_eq!(line["text"], expected["text"]);
        let pairs = line["chunks"].as_array().unwrap().iter();
        let pairs = pairs.zip(expected["chunks"].as_array().unwrap());
        for (chunk, expected) in pairs {
            assert_eq!(chunk["text"], expected["text"]);
            assert_eq!(chunk["timestamp"], expected["timestamp"]);
        }
    }
    let plain = transcribed(folder.path(), &["0.wav"], &["--beams", "1"]);
    plain.assert_status(0);
    let line: Value = serde_json::from_str(&plain.stdout).unwrap();
    assert!(line.get("chunks").is_none(), "{line}");
}

#[test]
fn subtitles_and_texts_are_written_by_the_extension() {
    if !is_present("speech") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    prepared(folder.path(), &serde_json::json!({}));
    for (name, begins, has) in [
        ("a.srt", "1\n00:00:0", " --> 00:00:0"),
        ("a.vtt", "WEBVTT\n\n1\n00:00:0", " --> 00:00:0"),
        ("a.txt", "", "\n"),
        ("a.jsonl", "{\"text\":", "}\n"),
    ] {
        let more = ["--beams", "1", "--output", name];
        transcribed(folder.path(), &["5.wav"], &more).assert_status(0);
        let text = fs::read_to_string(folder.path().join(name)).unwrap();
        assert!(text.starts_with(begins) && text.contains(has), "{text}");
    }
}

#[test]
fn files_and_options_that_do_not_fit_are_refused() {
    if !is_present("speech") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    prepared(folder.path(), &serde_json::json!({}));
    fs::write(folder.path().join("text.wav"), "no audio").unwrap();
    for (files, more, words) in [
        (&["text.wav"][..], &[][..], &["text.wav", "not audio"][..]),
        (&["missing.wav"], &[], &["missing.wav"]),
        (&["0.wav"], &["--output", "a.mp3"], &["a.mp3", ".srt"]),
        (&["0.wav", "1.wav"], &["--output", "a.srt"], &["one clip"]),
        (&["0.wav"], &["--output", "0.wav"], &["0.wav"]),
        (
            &["0.wav"],
            &["--output", "a.vtt", "--timestamps", "none"],
            &["--timestamps"],
        ),
        (&["0.wav"], &["--language", "klingon"], &["klingon"]),
    ] {
        transcribed(folder.path(), files, more).assert_refused(words);
    }
}

#[test]
fn subtitles_of_a_model_with_a_ctc_head_have_times_of_words() {
    if !is_present("speech") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let sound = wav(Encoding::Float, 1, 16000, &samples(3, 9000));
    fs::write(folder.path().join("a.wav"), sound).unwrap();
    let said = |more: &[&str]| {
        let mut command = program();
        command.current_dir(folder.path());
        command.args(["transcribe", "a.wav", "--output", "a.srt", "--model"]);
        answer(command.arg(weights("speech/wavlm")).args(more))
    };
    said(&[]).assert_refused(&["has no segments", "`--timestamps word`"]);
    said(&["--timestamps", "word"]).assert_status(0);
    let written = fs::read_to_string(folder.path().join("a.srt")).unwrap();
    assert!(written.contains(" --> "), "{written}");
}

/// A model on the Hub has a thousand adapters, of which one is downloaded.
#[test]
fn the_adapter_of_a_language_is_downloaded_with_the_model() {
    if !is_present("speech") {
        return;
    }
    let model = weights("speech/wav2vec2-mms");
    let folder = tempfile::tempdir().unwrap();
    let sound = wav(Encoding::Float, 1, 16000, &samples(3, 9000));
    fs::write(folder.path().join("a.wav"), sound).unwrap();
    let names = [
        "config.json",
        "model.safetensors",
        "preprocessor_config.json",
        "tokenizer_config.json",
        "vocab.json",
        "adapter.fra.safetensors",
    ];
    let mut files = Files::new();
    for name in names {
        files.insert(name.into(), fs::read(model.join(name)).unwrap());
    }
    files.insert("adapter.deu.safetensors".into(), files[names[5]].clone());
    let server = Server::start(Repo {
        id: "owner/tiny".into(),
        revisions: [("main".into(), "a".repeat(40))].into(),
        commits: [("a".repeat(40), files)].into(),
        ..Repo::default()
    });
    let server = server.unwrap();
    let said = |more: &[&str]| {
        let mut command = program();
        command
            .current_dir(folder.path())
            .args(["transcribe", "a.wav"])
            .args(more);
        command
            .env("HF_ENDPOINT", server.url())
            .env("HF_HUB_CACHE", folder.path().join("cache"));
        answer(
            command
                .env("NO_PROXY", "127.0.0.1")
                .env_remove("HF_HUB_OFFLINE"),
        )
    };
    let model = model.to_str().unwrap();
    let expected = said(&["--model", model, "--language", "fra"]);
    expected.assert_status(0);
    let found = said(&["--hub", "owner/tiny", "--language", "fra"]);
    found.assert_status(0);
    assert_eq!(found.stdout, expected.stdout);
    let other = said(&["--model", model]);
    assert_ne!(found.stdout, other.stdout);
    let snapshot = folder
        .path()
        .join("cache/models--owner--tiny/snapshots")
        .join("a".repeat(40));
    assert!(snapshot.join(names[5]).exists());
    assert!(!snapshot.join("adapter.deu.safetensors").exists());
    said(&["--hub", "owner/tiny", "--language", "xyz"])
        .assert_refused(&["adapter.xyz.safetensors", "adapter.deu.safetensors"]);
}
