//! Checkpoints with two stacks: a whole model runs without selecting one, blocks do not.

use crate::{
    said::assert_says,
    scratch::{Answer, answer, load, program},
    weights::{is_present, weights},
};

fn verify(folder: &str, fixture: &str, flags: &[&str]) -> Answer {
    let model = weights(folder);
    let mut command = program();
    command.arg("verify").arg("--model").arg(&model);
    command.arg("--fixture").arg(model.join(fixture));
    answer(command.args(flags))
}

#[test]
fn a_whole_model_of_two_stacks_is_verified_without_a_part() {
    if !is_present("families") {
        return;
    }
    for folder in ["families/bart", "families/whisper", "families/clip"] {
        for flags in [
            &["--precision", "none"][..],
            &["--precision", "f32"],
            &["--backward"],
        ] {
            let answer = verify(folder, "whole.safetensors", flags);
            answer.assert_status(0);
        }
    }
    let text = verify(
        "families/clip",
        "whole.text.safetensors",
        &["--part", "text"],
    );
    text.assert_status(0);
    assert_says(text.stdout, &["text_embeds", "pooler_output"]);
}

#[test]
fn blocks_of_two_stacks_are_not_verified_without_a_part() {
    if !is_present("families") {
        return;
    }
    let answer = verify("families/bart", "fixture.encoder.safetensors", &[]);
    answer.assert_refused(&["part: none chosen", "select encoder or decoder", "--part"]);
}

/// A class in transformers with only the encoder; for an embedder, T5 with both stacks in its file.
#[test]
fn the_encoder_is_opened_where_the_files_say_so() {
    use candle_blocks::text::{Pooling, TextOptions};
    use candle_blocks::{Checkpoint, CheckpointOptions, checkpoint::scheme::StackPart};
    if !is_present("families") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for (family, class) in [
        ("whisper", "WhisperForAudioClassification"),
        ("t5", "T5EncoderModel"),
        ("t5", "T5ForTokenClassification"),
    ] {
        let from = weights(&format!("families/{family}"));
        std::fs::copy(from.join("model.safetensors"), path("model.safetensors")).unwrap();
        let config = std::fs::read(from.join("config.json")).unwrap();
        let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        config["architectures"] = serde_json::json!([class]);
        std::fs::write(path("config.json"), config.to_string()).unwrap();
        let chosen = CheckpointOptions::default().part(StackPart::Encoder);
        let chosen = chosen.open(folder.path()).unwrap();
        let found = Checkpoint::open(folder.path()).unwrap();
        assert_eq!(found.config(), chosen.config(), "{class}");
    }
    let options = TextOptions::default().pooling([Pooling::Mean]);
    let refusal = options.embedder(weights("families/t5")).unwrap_err();
    assert!(refusal.to_string().contains("tokenizer.json"), "{refusal}"); // the encoder's; no decoder was requested
}

#[test]
fn a_run_of_both_stacks_writes_the_stages_of_both() {
    if !is_present("families") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("stages.safetensors");
    let model = weights("families/t5");
    let mut command = program();
    command.arg("run").arg("--model").arg(&model);
    command.arg("--input").arg(model.join("whole.safetensors"));
    answer(command.arg("--output").arg(&output)).assert_status(0);
    let written = load(&output);
    for name in [
        "encoder.embeddings",
        "encoder.layers.1.output",
        "encoder_last_hidden_state",
        "embeddings",
        "layers.1.feed_forward.input",
        "last_hidden_state",
        "logits",
    ] {
        assert!(written.contains_key(name), "{name} is not written");
    }
}
