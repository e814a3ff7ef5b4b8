//! Checkpoints of two stacks: a whole model is run without choosing one, blocks are not.

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
    answer.assert_refused(&["part: none chosen", "choose encoder or decoder", "--part"]);
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
