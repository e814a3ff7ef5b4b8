//! New models in families with two stacks have transformers' distributions, including embeddings and heads.

use std::collections::{BTreeMap, HashMap};

use candle_blocks::{
    Architecture, CheckpointOptions,
    candle_core::{DType, Tensor},
    config::TwoStackKind,
    model::{Model, Seq2Seq, TwoTowers},
    train::Fresh,
};

use crate::{
    device::device,
    numbers::numbers,
    reference::Reference,
    statistics::{N_MODELS, check},
    weights::{is_present, weights},
};

/// Families for which the reference has everything except the later blocks.
const OF_TWO: [&str; 8] = [
    "families/bart",
    "families/clip",
    "families/siglip",
    "families/t5",
    "families/t5-gated",
    "families/whisper",
    // For one of the two.
    "heads/clip-image_classification",
    "heads/siglip-image_classification",
];

#[test]
fn every_model_of_two_stacks_is_initialized_as_in_transformers() {
    if !is_present("families") {
        return;
    }
    let reference = Reference::open("initialization");
    for folder in OF_TWO {
        let options = CheckpointOptions::default().whole();
        let architecture = options.clone().architecture(weights(folder)).unwrap();
        let checkpoint = options.open(weights(folder)).unwrap();
        let first = architecture.model_config().unwrap();
        let second = architecture.second_stack().unwrap();
        let mut drawn: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for seed in 0..N_MODELS {
            let initialization = architecture.initialization.clone();
            let fresh = Fresh::new(initialization, seed, DType::F32, &device());
            let vb = fresh.var_builder();
            match second.map(|second| (second, second.kind)) {
                None => drop(Model::new(first, vb).unwrap()),
                Some((second, TwoStackKind::EncoderDecoder { .. })) => {
                    drop(Seq2Seq::new(first, second, vb).unwrap());
                }
                Some((second, _)) => drop(TwoTowers::new(first, second, vb).unwrap()),
            }
            let by_role: HashMap<String, Tensor> = fresh
                .parameters()
                .into_iter()
                .map(|(role, variable)| (role, variable.as_tensor().clone()))
                .collect();
            for (tensor, values) in checkpoint.to_disk(&by_role).unwrap() {
                let values = numbers(&values);
                drawn
                    .entry(format!("{folder}/{tensor}"))
                    .or_default()
                    .extend(values);
            }
        }
        let start = format!("{folder}/");
        let names = reference.names().into_iter();
        let names: Vec<String> = names.filter(|name| name.starts_with(&start)).collect();
        drawn.retain(|name, _| names.contains(name));
        let missing = names.iter().filter(|name| !drawn.contains_key(*name));
        assert_eq!(missing.collect::<Vec<_>>(), [""; 0], "{folder}");
        assert!(names.len() >= 15, "{folder}: {names:?}");
        check(&reference, &drawn);
    }
}

/// The row that PyTorch neither draws nor trains.
#[test]
fn the_padding_embedding_is_initialized_to_zeros() {
    let architecture = Architecture::open(weights("tiny-bert")).unwrap();
    let model = architecture.model_config().unwrap();
    let fresh = Fresh::new(
        architecture.initialization.clone(),
        3,
        DType::F32,
        &device(),
    );
    Model::new(model, fresh.var_builder()).unwrap();
    let parameters = fresh.parameters();
    let words = parameters.find("embeddings.word.weight").unwrap();
    let is_zero = |row: usize| numbers(&words.get(row).unwrap()).iter().all(|&x| x == 0.0);
    assert!(is_zero(0) && !is_zero(1));
}
