//! A whole model that is saved comes back, and a new one is written as transformers writes it.

use std::{collections::BTreeSet, path::Path};

use candle_blocks::{
    Architecture, Checkpoint, CheckpointOptions, Parameters, Weights,
    candle_core::{DType, Tensor},
    config::EmbeddingsConfig,
    model::{Model, ModelInput, ModelOutput},
    train::Fresh,
};

use crate::{
    contents::contents,
    device::device,
    memory::with_memory,
    message::message,
    numbers::{bits, numbers},
    one_stack::of_one_stack,
    said::assert_says,
    same::assert_same,
    weights::weights,
};

/// Returns the whole model's parameters, as for training.
fn trained(checkpoint: &Checkpoint) -> Parameters {
    let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
    loader.model().unwrap();
    loader.parameters()
}

#[test]
fn changed_embeddings_and_heads_of_every_model_arrive() {
    for whole in of_one_stack() {
        let checkpoint = whole.open();
        let given = trained(&checkpoint);
        for (_, variable) in &given {
            // Values that are exact in bf16 and f16.
            let changed = Tensor::full(0.25f32, variable.dims(), &device()).unwrap();
            variable.set(&changed).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        checkpoint.save(folder.path(), given.clone()).unwrap();
        let copy = CheckpointOptions::default().whole();
        let copy = copy.open(folder.path()).unwrap();
        assert_eq!(copy.report(), checkpoint.report(), "{}", whole.name);
        let found = trained(&copy);
        assert_eq!(found.len(), given.len(), "{}", whole.name);
        for ((role, ours), (_, theirs)) in given.iter().zip(&found) {
            assert_eq!(bits(ours), bits(theirs), "{}: {role}", whole.name);
        }
    }
}

/// Some config.json files describe two stacks, although the class has only one.
fn architecture(folder: &Path) -> Architecture {
    let options = CheckpointOptions::default().whole();
    options.architecture(folder).unwrap()
}

fn opened(folder: &Path) -> Checkpoint {
    CheckpointOptions::default().whole().open(folder).unwrap()
}

#[test]
fn every_head_is_written_as_transformers_wrote_it() {
    let mut failures = Vec::new();
    for whole in of_one_stack() {
        let checkpoint = whole.open();
        let architecture = architecture(&weights(&whole.name));
        let model = architecture.model_config().unwrap();
        if model.head.is_none() {
            continue; // a base model's names are those of its blocks alone, as in tests/files/saving_new.rs
        }
        let parameters = trained(&checkpoint);
        let of_head = |role: &str| model.pooler.is_some() || !role.starts_with("pooler.");
        let parameters = parameters.iter().filter(|(role, _)| of_head(role));
        let parameters = parameters.map(|(role, v)| (role, v.as_tensor()));
        let folder = tempfile::tempdir().unwrap();
        architecture.save(folder.path(), parameters, &[]).unwrap();
        let (ours, theirs) = (contents(&opened(folder.path())), contents(&checkpoint));
        let ignored = checkpoint.report().ignored;
        let differ = |name: &String| ours.get(name) != theirs.get(name);
        let names: BTreeSet<String> = ours.keys().chain(theirs.keys()).cloned().collect();
        // Beside a model of text.
        let of_images = |name: &str| {
            let modules = ["vision_tower.", "multi_modal_projector.", "visual."];
            modules.iter().any(|module| name.contains(module))
        };
        let is_beside = |name: &String| {
            ignored.contains(name)
                || name.starts_with("cls.seq_relationship.") // the other head of pretraining
                || name.starts_with("esm.contact_head.") // reads attention weights
                || name.ends_with("embeddings.mask_token") // hides patches in training only
                || of_images(name)
                || model.pooler.is_none() && name.contains("pooler.")
        };
        let differing: Vec<String> = names
            .into_iter()
            .filter(|name| differ(name) && !is_beside(name))
            .collect();
        if !differing.is_empty() {
            failures.push(format!("{}: {differing:?}", whole.name));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A model drawn for the `config.json` in a folder.
fn drawn(folder: &Path) -> (Architecture, Fresh, Model) {
    let architecture = architecture(folder);
    let initialization = architecture.initialization.clone();
    let fresh = Fresh::new(initialization, 1, DType::F32, &device());
    let model = Model::new(architecture.model_config().unwrap(), fresh.var_builder()).unwrap();
    (architecture, fresh, model)
}

#[test]
fn a_fresh_model_of_every_family_saved_and_opened_gives_the_same_bits() {
    for whole in of_one_stack() {
        let (architecture, fresh, model) = drawn(&weights(&whole.name));
        let folder = tempfile::tempdir().unwrap();
        architecture
            .save(folder.path(), fresh.parameters(), &[])
            .unwrap();
        let input = match &model.config().embeddings {
            EmbeddingsConfig::Patches(patches) => {
                let [height, width] = patches.image_size;
                let shape = (2, patches.n_channels, height, width);
                ModelInput::pixels(&Tensor::ones(shape, DType::F32, &device()).unwrap())
            }
            _ => ModelInput::tokens(&Tensor::new(&[[4u32, 5, 6], [7, 8, 9]], &device()).unwrap()),
        };
        let input = with_memory(input, &model);
        let ours = model.forward(&input).unwrap();
        let reopened = opened(folder.path());
        let reopened = reopened
            .load(Weights::Dense(DType::F32, &device()))
            .model()
            .unwrap();
        assert_eq!(reopened.config(), model.config(), "{}", whole.name);
        let theirs = reopened.forward(&input).unwrap();
        let result = |output: ModelOutput| output.logits.unwrap_or(output.last_hidden_state);
        assert_same(&result(ours), &result(theirs), &whole.name);
    }
}

#[test]
fn embeddings_and_heads_are_initialized_as_in_transformers() {
    let (_, fresh, _) = drawn(&weights("tiny-gpt2"));
    let parameters = fresh.parameters();
    for role in ["embeddings.word.weight", "embeddings.position.weight"] {
        let values = numbers(parameters.find(role).unwrap().as_tensor());
        let square: f64 = values.iter().map(|value| value * value).sum();
        let deviation = (square / values.len() as f64).sqrt();
        // With 264 or more values, four standard deviations of the sample's deviation.
        assert!((0.0165..0.0235).contains(&deviation), "{role}: {deviation}");
    }
}

#[test]
fn half_of_what_surrounds_the_blocks_is_refused() {
    let (architecture, fresh, _) = drawn(&weights("tiny-gpt2"));
    let folder = tempfile::tempdir().unwrap();
    let parameters = fresh.parameters();
    let half = parameters
        .iter()
        .filter(|(role, _)| role != "embeddings.position.weight")
        .map(|(role, v)| (role, v.as_tensor()));
    let refused = message(architecture.save(folder.path().join("new"), half, &[]));
    assert_says(refused, &["embeddings.position.weight", "all or none"]);
}
