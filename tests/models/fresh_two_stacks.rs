//! A new model with two stacks, initialized and saved without any weights, can be read by transformers.

use std::collections::BTreeSet;

use candle_blocks::{
    Architecture, Checkpoint, CheckpointOptions, Parameters, Weights,
    candle_core::{DType, Tensor},
    checkpoint::SecondStack,
    config::{EmbeddingsConfig, TwoStackKind},
    model::{ModelInput, Seq2Seq, TwoTowers},
    train::Fresh,
};

use crate::{
    contents::contents,
    device::device,
    message::message,
    numbers::bits,
    said::assert_says,
    same::assert_same,
    weights::{is_present, weights},
    whole::{Whole, wholes},
};

fn of_two_stacks() -> Vec<(Whole, Checkpoint)> {
    let opened = wholes().into_iter().map(|whole| {
        let checkpoint = whole.open();
        (whole, checkpoint)
    });
    opened
        .filter(|(_, checkpoint)| checkpoint.second_stack().unwrap().is_some())
        .collect()
}

fn architecture(whole: &Whole) -> Architecture {
    let options = CheckpointOptions::default().whole();
    options.architecture(weights(&whole.name)).unwrap()
}

fn second(architecture: &Architecture) -> &SecondStack {
    architecture.second_stack().unwrap().unwrap()
}

#[test]
fn both_stacks_are_written_as_transformers_wrote_them() {
    let mut failures = Vec::new();
    for (whole, checkpoint) in of_two_stacks() {
        let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
        match checkpoint.second_stack().unwrap().unwrap().kind {
            TwoStackKind::EncoderDecoder { .. } => drop(loader.seq2seq().unwrap()),
            _ => drop(loader.two_towers().unwrap()),
        }
        // A buffer is no variable.
        let vb = loader.var_builder();
        let constants = ["causal_lm.output.bias"];
        let known = loader.parameters();
        let missing = |role: &&str| known.find(role).is_none() && vb.contains_tensor(role);
        let constants = constants.into_iter().filter(missing);
        let constant = |role: &str| (role.to_string(), vb.get_unchecked(role).unwrap());
        let constants: Vec<(String, Tensor)> = constants.map(constant).collect();
        let trained = known
            .iter()
            .map(|(role, v)| (role.clone(), v.as_tensor().clone()));
        let folder = tempfile::tempdir().unwrap();
        architecture(&whole)
            .save(folder.path(), trained.chain(constants), &[])
            .unwrap();
        let options = CheckpointOptions::default().whole();
        let (ours, theirs) = (
            contents(&options.open(folder.path()).unwrap()),
            contents(&checkpoint),
        );
        // For BART with embeddings for each stack, transformers also saves one that nothing reads.
        let mut ignored = checkpoint.report().ignored;
        if whole.name == "heads/bart-untied" {
            ignored.push("model.shared.weight".to_string());
        }
        let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
        let differing: Vec<&String> = names
            .into_iter()
            .filter(|name| ours.get(*name) != theirs.get(*name) && !ignored.contains(name))
            .collect();
        if !differing.is_empty() {
            failures.push(format!("{}: {differing:?}", whole.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn tokens() -> Tensor {
    Tensor::new(&[[4u32, 5, 2], [7, 6, 2]], &device()).unwrap()
}

/// Returns the input for both stacks.
fn input(architecture: &Architecture) -> ModelInput {
    let ones =
        |shape: (usize, usize, usize, usize)| Tensor::ones(shape, DType::F32, &device()).unwrap();
    match &second(architecture).config.embeddings {
        EmbeddingsConfig::Patches(patches) => {
            let [height, width] = patches.image_size;
            let pixels = ones((2, patches.n_channels, height, width));
            ModelInput {
                pixel_values: Some(pixels),
                ..ModelInput::tokens(&tokens())
            }
        }
        EmbeddingsConfig::Spectrum(spectrum) => {
            let features = ones((1, 2, spectrum.n_mels, 2 * spectrum.n_positions));
            ModelInput::spectrum(&features.squeeze(0).unwrap()).with_decoder(&tokens())
        }
        _ => ModelInput::tokens(&tokens()).with_decoder(&tokens()),
    }
}

fn of_memory(model: &Seq2Seq, input: &ModelInput) -> Vec<Tensor> {
    let output = model.forward(input).unwrap().decoder;
    vec![output.logits.unwrap_or(output.last_hidden_state)]
}

/// Returns each tower's results separately: some have vectors with different widths, which cannot be compared.
fn of_towers(model: &TwoTowers, input: &ModelInput) -> Vec<Tensor> {
    let pixels = ModelInput::pixels(input.pixel_values.as_ref().unwrap());
    let outputs = [model.text().forward(input), model.vision().forward(&pixels)];
    let vectors = outputs
        .map(|output| output.unwrap())
        .map(|o| o.logits.or(o.pooler_output));
    vectors.into_iter().flatten().collect()
}

/// Initializes a model from a `config.json`; returns its parameters and its results for the input.
fn drawn(architecture: &Architecture) -> (Parameters, Vec<Tensor>) {
    let initialization = architecture.initialization.clone();
    let fresh = Fresh::new(initialization, 1, DType::F32, &device());
    let (first, second) = (architecture.model_config().unwrap(), second(architecture));
    let (input, vb) = (input(architecture), fresh.var_builder());
    let result = match second.kind {
        TwoStackKind::EncoderDecoder { .. } => {
            of_memory(&Seq2Seq::new(first, second, vb).unwrap(), &input)
        }
        _ => of_towers(&TwoTowers::new(first, second, vb).unwrap(), &input),
    };
    (fresh.parameters(), result)
}

#[test]
fn a_fresh_model_of_two_stacks_saved_and_opened_gives_the_same_bits() {
    for (whole, known) in of_two_stacks() {
        let architecture = architecture(&whole);
        let (parameters, ours) = drawn(&architecture);
        let folder = tempfile::tempdir().unwrap();
        architecture.save(folder.path(), parameters, &[]).unwrap();
        let reopened = CheckpointOptions::default().whole();
        let reopened = reopened.open(folder.path()).unwrap();
        let (found, expected) = (reopened.report(), known.report());
        assert_eq!(found.used, expected.used, "{}", whole.name);
        assert!(found.missing.is_empty(), "{}", whole.name);
        let input = input(&architecture);
        let loader = reopened.load(Weights::Dense(DType::F32, &device()));
        let theirs = match second(&architecture).kind {
            TwoStackKind::EncoderDecoder { .. } => of_memory(&loader.seq2seq().unwrap(), &input),
            _ => of_towers(&loader.two_towers().unwrap(), &input),
        };
        assert_eq!(ours.len(), theirs.len(), "{}", whole.name);
        assert!(!ours.is_empty(), "{}", whole.name);
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_same(ours, theirs, &whole.name);
        }
    }
}

#[test]
fn a_part_below_another_name_shares_what_both_stacks_read() {
    if !is_present("families/bart") {
        return;
    }
    let architecture = architecture(&Whole {
        name: "families/bart".to_string(),
    });
    let initialization = architecture.initialization.clone();
    let fresh = Fresh::new(initialization, 1, DType::F32, &device());
    let vb = fresh.var_builder().pp("outer");
    Seq2Seq::new(
        architecture.model_config().unwrap(),
        second(&architecture),
        vb,
    )
    .unwrap();
    let parameters = fresh.parameters();
    assert!(parameters.find("outer.embeddings.word.weight").is_some());
    assert!(
        parameters
            .find("outer.encoder.embeddings.word.weight")
            .is_none()
    );
    assert!(
        parameters
            .find("outer.encoder.embeddings.norm.weight")
            .is_some()
    );
}

#[test]
fn stacks_with_tables_of_their_own_share_nothing() {
    if !is_present("heads/bart-untied") {
        return;
    }
    let checkpoint = CheckpointOptions::default().whole();
    let checkpoint = checkpoint.open(weights("heads/bart-untied")).unwrap();
    assert!(
        checkpoint
            .second_stack()
            .unwrap()
            .unwrap()
            .shared
            .is_empty()
    );
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    loader.seq2seq().unwrap();
    let parameters = loader.parameters();
    for (role, name) in [
        (
            "embeddings.word.weight",
            "model.decoder.embed_tokens.weight",
        ),
        (
            "encoder.embeddings.word.weight",
            "model.encoder.embed_tokens.weight",
        ),
        ("causal_lm.output.weight", "lm_head.weight"),
    ] {
        let theirs = checkpoint.files().read(name).unwrap();
        let ours = parameters.find(role).unwrap();
        assert_eq!(bits(ours), bits(&theirs), "{role}");
    }
}

#[test]
fn half_of_two_stacks_is_refused() {
    if !is_present("families/t5") {
        return;
    }
    let architecture = architecture(&Whole {
        name: "families/t5".to_string(),
    });
    let (parameters, _) = drawn(&architecture);
    let folder = tempfile::tempdir().unwrap();
    let decoder = parameters
        .iter()
        .filter(|(role, _)| !role.starts_with("encoder."));
    let decoder = decoder.map(|(role, v)| (role, v.as_tensor()));
    let refused = message(architecture.save(folder.path().join("new"), decoder, &[]));
    assert_says(refused, &["encoder.blocks.0.", "missing"]);
    let vb = Fresh::new(
        architecture.initialization.clone(),
        1,
        DType::F32,
        &device(),
    )
    .var_builder();
    let towers = TwoTowers::new(
        architecture.model_config().unwrap(),
        second(&architecture),
        vb,
    );
    assert_says(message(towers), &["a text and a vision tower"]);
}
