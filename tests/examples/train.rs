//! `examples/train` does what it says, and says what is wrong with what it is given.

use std::{collections::HashSet, fs, path::Path};

use candle_blocks::candle_core::{Device, Tensor};

use crate::{
    arguments::Args,
    message::message,
    model::{Gpt, Size},
    numbers::bits,
    said::assert_says,
    sample::{Sampling, sample},
    text::Text,
    training::{COLUMNS, Losses, Settings, Training},
    weights::{is_present, weights},
};

pub const SIZE: Size = Size {
    d_model: 32,
    n_blocks: 2,
    n_heads: 2,
    context: 16,
};

const SETTINGS: Settings = Settings {
    steps: 40,
    rows: 8,
    learning_rate: 1e-2,
    warm_up: 4,
    weight_decay: 0.1,
    clip: 1.0,
    evaluate_every: 4,
};

/// A text that every package holds.
fn readme() -> Text {
    Text::open(&weights("README.md"), SIZE.context, 7).unwrap()
}

fn fresh(settings: Settings) -> Training {
    Training::new(Gpt::fresh(SIZE, 7).unwrap(), readme(), settings).unwrap()
}

#[test]
fn a_model_learns_is_saved_and_is_read_back_with_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let mut training = fresh(SETTINGS);
    let before = training.evaluate().unwrap();
    assert!((before - 256f64.ln()).abs() < 0.1, "{before}"); // it knows nothing
    training.run(usize::MAX).unwrap();
    let after = training.evaluate().unwrap();
    assert_eq!(training.losses.last().unwrap().held_out, after);
    assert!(after < 0.7 * before, "{before} {after}");

    training.model.save(folder.path()).unwrap();
    let reopened = Gpt::open(folder.path()).unwrap();
    let pairs = training.model.parameters().into_iter();
    for ((role, ours), (other, theirs)) in pairs.zip(reopened.parameters()) {
        assert_eq!(role, other);
        assert_eq!(bits(&ours), bits(&theirs), "{role}");
    }
    let reopened = Training::new(reopened, readme(), SETTINGS).unwrap();
    assert_eq!(reopened.evaluate().unwrap(), after);
}

#[test]
fn a_resumed_training_has_the_bits_of_an_uninterrupted_one() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.safetensors");
    let mut whole = fresh(SETTINGS);
    whole.run(12).unwrap();
    let mut first = fresh(SETTINGS);
    first.run(6).unwrap(); // between two evaluations
    first.save(&state).unwrap();
    let other = Gpt::fresh(SIZE, 8).unwrap(); // the file's parameters replace its own
    let mut second = Training::new(other, readme(), SETTINGS).unwrap();
    second.restore(&state).unwrap();
    assert_eq!(second.step(), 6);
    second.run(12).unwrap();
    assert_eq!(whole.losses, second.losses);
    assert_eq!(whole.losses.len(), 3);
    let pairs = whole.model.parameters().into_iter();
    for ((role, one), (_, other)) in pairs.zip(second.model.parameters()) {
        assert_eq!(bits(&one), bits(&other), "{role}");
    }
}

#[test]
fn state_files_that_cannot_be_resumed_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state.safetensors");
    fresh(SETTINGS).save(&state).unwrap();
    let refused = |mut training: Training, path: &Path, words: &[&str]| {
        assert_says(message(training.restore(path)), words);
    };
    let missing = folder.path().join("none.safetensors");
    refused(
        fresh(SETTINGS),
        &missing,
        &["none.safetensors", "start again"],
    );
    let model = weights("tiny-gpt2/model.safetensors");
    refused(
        fresh(SETTINGS),
        &model,
        &["not a training state", "AdamW::save"],
    );
    let steps = SETTINGS.steps + 1;
    let longer = fresh(Settings { steps, ..SETTINGS });
    refused(longer, &state, &["settings", "steps: 40", "steps: 41"]);
    let config = weights("manifest.json");
    let text = Text::open(&config, SIZE.context, 7).unwrap();
    let other = Training::new(Gpt::fresh(SIZE, 7).unwrap(), text, SETTINGS).unwrap();
    refused(other, &state, &["another text", "--text FILE"]);
    let wider = Size {
        d_model: 48,
        ..SIZE
    };
    let wider = Gpt::fresh(wider, 7).unwrap();
    let wider = Training::new(wider, readme(), SETTINGS).unwrap();
    refused(wider, &state, &["[256, 32]", "[256, 48]", "the model that"]);
}

#[test]
fn arguments_of_a_training_that_make_no_sense_are_named_with_what_was_expected() {
    let parse = |args: &[&str]| Args::parse(args.iter().map(|arg| arg.to_string()));
    for (args, words) in [
        (&["--steps", "x"][..], ["--steps x", "--steps 2000"]),
        (&["--steps", "-1"], ["--steps -1", "an integer"]),
        (&["--text", "t", "--steps"], ["--steps", "needs a value"]),
        (&["--step", "4"], ["--step;", "--steps N"]),
    ] {
        assert_says(message(parse(args)), &words);
    }
    let args = parse(&["--text", "t", "--steps", "40"]).unwrap();
    assert_eq!((args.steps, args.is_training()), (Some(40), true));
    assert!(!parse(&["--sample", "Anne"]).unwrap().is_training());
}

#[test]
fn a_loss_that_is_no_number_stops_the_training_and_moves_nothing() {
    let mut training = fresh(SETTINGS);
    let (role, parameter) = training.model.parameters().last().cloned().unwrap();
    let nan = Tensor::full(f32::NAN, parameter.shape(), &Device::Cpu).unwrap();
    parameter.set(&nan).unwrap();
    let before = bits(&training.model.parameters()[0].1);
    let error = training.run(1).unwrap_err();
    let text = format!("{error:#}");
    assert!(text.contains("NaN") && text.contains("step 0"), "{text}");
    assert_eq!(before, bits(&training.model.parameters()[0].1), "{role}");
}

#[test]
fn a_text_that_is_missing_or_too_short_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |path: &Path, words: &[&str]| {
        assert_says(message(Text::open(path, 128, 0)), words);
    };
    let path = folder.path().join("text.txt");
    refused(&path, &["text.txt", "--text"]);
    fs::write(&path, "x".repeat(1289)).unwrap();
    refused(&path, &["text.txt", "1289", "1290"]);
    fs::write(&path, "x".repeat(1290)).unwrap();
    let text = Text::open(&path, 128, 0).unwrap();
    assert_eq!(text.evaluation().unwrap().targets.dims(), [32, 128]);
    assert_eq!(text.batch(0, 3).unwrap().inputs.dims(), [3, 128]);
}

#[test]
fn the_cache_gives_the_bytes_that_reading_everything_again_gives() {
    let mut training = fresh(SETTINGS);
    training.run(20).unwrap();
    let model = &training.model;
    let text: &[u8] = b"the same machine"; // with the context's full length
    let mut cache = model.new_cache();
    for i in 0..text.len() {
        let cached = model.next(&text[i..=i], &mut cache).unwrap();
        let whole = model.next(&text[..=i], &mut model.new_cache()).unwrap();
        for (a, b) in cached.iter().zip(&whole) {
            assert!((a - b).abs() < 1e-4, "{i}: {a} {b}");
        }
    }
    // Far beyond the context, and from a prompt that is longer than it.
    let sampling = Sampling {
        temperature: 1.0,
        seed: 3,
    };
    let mut written = Vec::new();
    sample(model, &[text, text].concat(), 40, sampling, |byte| {
        written.push(byte)
    })
    .unwrap();
    assert_eq!(written.len(), 40);
    let error = sample(model, b"", 1, sampling, |_| ()).unwrap_err();
    assert!(error.to_string().contains("--sample"), "{error}");
}

#[test]
fn the_committed_model_continues_with_words_in_its_text() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let model = Gpt::open(&weights("tiny-gpt-text")).unwrap();
    let sampling = Sampling {
        temperature: 0.7,
        seed: 42,
    };
    let mut written = Vec::new();
    sample(&model, b"Anne had ", 1000, sampling, |byte| {
        written.push(byte)
    })
    .unwrap();
    let written = String::from_utf8(written).unwrap();
    let text = fs::read_to_string(weights("tiny-gpt-text/persuasion.txt")).unwrap();
    let words = |text: &str| -> Vec<String> {
        let words = text.split(|c: char| !c.is_alphabetic());
        let words = words.filter(|word| !word.is_empty());
        words.map(str::to_lowercase).collect()
    };
    let known: HashSet<String> = words(&text).into_iter().collect();
    let sampled = words(&written);
    let n_known = sampled.iter().filter(|word| known.contains(*word)).count();
    println!(
        "{n_known} of {} words are the text's:\n{written}",
        sampled.len()
    );
    assert!(sampled.len() > 120, "{written}");
    assert!(n_known * 10 > sampled.len() * 8, "{written}");
}

/// `examples/train/losses.csv`: what this crate and PyTorch reached with the same model, data and steps.
#[test]
fn the_recorded_losses_end_where_pytorchs_do_and_are_the_committed_models() {
    if !is_present("tiny-gpt-text") {
        return;
    }
    let record = weights("../examples/train/losses.csv");
    let record = fs::read_to_string(record).unwrap();
    let mut lines = record.lines();
    let header = format!("{COLUMNS},torch_trained,torch_held_out");
    assert_eq!(lines.next(), Some(&*header));
    let rows: Vec<[f64; 5]> = lines
        .map(|line| {
            let cells: Vec<f64> = line.split(',').map(|c| c.parse().unwrap()).collect();
            cells.try_into().unwrap()
        })
        .collect();
    let [step, _, ours, _, theirs] = *rows.last().unwrap();
    assert_eq!(step, Settings::default().steps as f64);
    // Two trainings drift apart by rounding; this is a twentieth of what the last quarter of the steps still gains.
    let quarter = rows[rows.len() * 3 / 4 - 1];
    let gained = quarter[4] - theirs;
    println!("ours {ours:.4}, PyTorch's {theirs:.4}, gained {gained:.4}");
    assert!((ours - theirs).abs() < gained / 20.0, "{ours} {theirs}");

    let model = Gpt::open(&weights("tiny-gpt-text")).unwrap();
    let text = weights("tiny-gpt-text/persuasion.txt");
    let text = Text::open(&text, model.context(), 42).unwrap();
    let training = Training::new(model, text, Settings::default()).unwrap();
    let found = training.evaluate().unwrap();
    assert!((found - ours).abs() < 1e-5, "{found} {ours}"); // other instructions round differently
}

/// A line in `losses.csv` reads back with the same bits.
#[test]
fn losses_survive_as_text() {
    let losses = Losses {
        step: 50,
        trained: 0.1 + 0.2,
        held_out: 1.0 / 3.0,
    };
    assert_eq!(losses.to_string().parse::<Losses>().unwrap(), losses);
    assert!("50,1".parse::<Losses>().is_err());
}
