//! `-` is standard input wherever a file is read.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use crate::conversation::folder;
use crate::scratch::{Answer, Scratch, answer, program};
use crate::weights::{is_present, weights};

/// Returns the answers with a file by its name, and as standard input.
fn both(command: impl Fn() -> Command, option: &str, file: &Path) -> [Answer; 2] {
    let named = |name: &Path| {
        let mut command = command();
        if !option.is_empty() {
            command.arg(option);
        }
        command.arg(name);
        command
    };
    let of_input = answer(named(Path::new("-")).stdin(File::open(file).unwrap()));
    [answer(&mut named(file)), of_input]
}

#[track_caller]
fn assert_same([named, of_input]: &[Answer; 2]) {
    named.assert_status(0);
    of_input.assert_status(0);
    assert_eq!(named.stdout, of_input.stdout);
    assert!(!named.stdout.is_empty());
}

#[test]
fn tensors_are_read_from_standard_input() {
    if !is_present("tiny-bert") {
        return;
    }
    let scratch = Scratch::of("tiny-bert");
    let with = |name: &str| {
        let mut command = program();
        command.arg(name).arg("--model").arg(scratch.model());
        command
    };
    let verify = || {
        let mut command = with("verify");
        command.arg("--json");
        command
    };
    assert_same(&both(verify, "--fixture", &scratch.input()));
    let run = || {
        let mut command = with("run");
        command.arg("--output").arg(scratch.output());
        command
    };
    let written = ["-", scratch.input().to_str().unwrap()].map(|name| {
        let mut command = run();
        command.args(["--input", name]);
        answer(command.stdin(File::open(scratch.input()).unwrap())).assert_status(0);
        fs::read(scratch.output()).unwrap()
    });
    assert!(written[0] == written[1]);
    let mut empty = run();
    let empty = answer(empty.args(["-i", "-"]).stdin(std::process::Stdio::null()));
    empty.assert_refused(&["standard input"]);
}

#[test]
fn token_ids_and_messages_are_read_from_standard_input() {
    let Some(folder) = folder() else { return };
    let generate = || {
        let mut command = program();
        command.current_dir(folder.path());
        command.args(["generate", "--model", ".", "-n", "4"]);
        command
    };
    let ids = folder.path().join("ids.safetensors");
    let tensor = candle_blocks::candle_core::Tensor::new(
        &[[83u32, 105]],
        &candle_blocks::candle_core::Device::Cpu,
    );
    let tensors = [("input_ids".to_string(), tensor.unwrap())];
    candle_blocks::checkpoint::write::write_safetensors(&ids, &tensors, None).unwrap();
    assert_same(&both(generate, "--input-ids", &ids));
    assert_same(&both(
        generate,
        "--messages",
        &folder.path().join("messages.json"),
    ));
}

#[cfg(feature = "media")]
#[test]
fn pictures_and_audio_are_read_from_standard_input() {
    if !is_present("pictures") || !is_present("speech") {
        return;
    }
    let classify = || {
        let mut command = program();
        command
            .arg("classify")
            .arg("--model")
            .arg(weights("pictures/vit"));
        command
    };
    let results = fs::read_to_string(weights("pictures/vit/results.json")).unwrap();
    let results: serde_json::Value = serde_json::from_str(&results).unwrap();
    let file = weights("pictures/files").join(results["files"][0].as_str().unwrap());
    assert_same(&both(classify, "--images", &file));
    let folder = tempfile::tempdir().unwrap();
    let clip = folder.path().join("clip.wav");
    let samples = crate::sounds::samples(1, 8000);
    fs::write(
        &clip,
        crate::wav::wav(crate::wav::Encoding::Pcm16, 1, 16000, &samples),
    )
    .unwrap();
    let transcribe = || {
        let mut command = program();
        command
            .arg("transcribe")
            .arg("--model")
            .arg(weights("speech/whisper"));
        command
    };
    assert_same(&both(transcribe, "", &clip));
}
