//! An option that cannot be followed is an error, not left out in silence.

use std::{fs, process::Command, sync::mpsc, thread, time::Duration};

use candle_blocks::{
    CheckpointOptions, Error,
    checkpoint::scheme::{Family, StackPart, StackSource},
};

use crate::{said::assert_says, weights::weights};

fn bert() -> Family {
    Family::from_json_file(weights("../examples/family.json")).unwrap()
}

#[test]
fn a_part_that_the_given_family_does_not_describe_is_refused() {
    let open = |family: Family, part| {
        let options = CheckpointOptions::default().family(family).part(part);
        options.open(weights("tiny-bert"))
    };
    let error = open(bert(), StackPart::Decoder).unwrap_err();
    assert!(matches!(error, Error::InvalidInput { .. }), "{error:?}");
    assert_says(&error, &["part", "decoder", "my_bert", "a single stack"]);
    let error = open(bert().part(StackPart::Encoder), StackPart::Decoder).unwrap_err();
    assert_says(&error, &["decoder was selected", "describes the encoder"]);
    open(bert().part(StackPart::Encoder), StackPart::Encoder).unwrap();
}

#[test]
fn a_config_json_that_is_named_and_not_there_is_missed_even_if_the_blocks_are_given() {
    let checkpoint = CheckpointOptions::default().open(weights("tiny-bert"));
    let mut family = bert();
    let config = checkpoint.unwrap().config().clone();
    family.config = StackSource::Given(Box::new(config));
    let options = CheckpointOptions::default().family(family);
    options.clone().open(weights("tiny-bert")).unwrap();
    let error = options
        .config("elsewhere/config.json")
        .open(weights("tiny-bert"))
        .unwrap_err();
    assert!(matches!(error, Error::MissingConfig { .. }), "{error:?}");
    assert_says(&error, &["elsewhere/config.json"]);
}

/// Opening a named pipe waits for somebody to write to it.
#[test]
#[cfg(unix)]
fn a_config_json_that_is_a_pipe_is_refused_without_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let name = "model.safetensors";
    fs::copy(weights("tiny-bert").join(name), folder.path().join(name)).unwrap();
    let pipe = folder.path().join("config.json");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let opened = CheckpointOptions::default().open(folder.path());
        sender.send(opened.map(drop))
    });
    let opened = receiver.recv_timeout(Duration::from_secs(60));
    let error = opened.expect("it waits for a writer").unwrap_err();
    assert_says(&error, &["config.json", "not a regular file"]);
}
