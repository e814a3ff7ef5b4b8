//! A stack without a checkpoint is saved as transformers saves its family.

use std::{collections::BTreeMap, fs, path::Path};

use candle_blocks::{
    Architecture, Checkpoint, Parameters, SaveOptions,
    candle_core::{DType, Device, Tensor},
    train::Fresh,
};

use crate::{committed, contents::contents, device::device, numbers::bits, weights::weights};

#[test]
fn every_family_is_written_as_transformers_wrote_it() {
    let mut failed = Vec::new();
    for stack in committed::families() {
        let checkpoint = stack.open();
        let architecture = stack.options().architecture(stack.folder()).unwrap();
        let loader = checkpoint.trainable(DType::F32, &device()).unwrap();
        loader.stack().unwrap();
        let used = checkpoint.report().used;
        let others: Vec<(String, Tensor)> = checkpoint
            .files()
            .names()
            .filter(|name| used.iter().all(|used| used.name != *name))
            .map(|name| (name.to_string(), checkpoint.files().read(name).unwrap()))
            .collect();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new");
        let parameters = loader.parameters();
        let parameters = parameters.iter().map(|(role, v)| (role, v.as_tensor()));
        architecture.save(&path, parameters, &others).unwrap();
        let saved = stack.options().open(&path).unwrap();
        let (ours, theirs) = (contents(&saved), contents(&checkpoint));
        if ours != theirs {
            let lacking = |a: &BTreeMap<_, _>, b: &BTreeMap<_, _>| -> Vec<String> {
                a.keys()
                    .filter(|name| !b.contains_key(*name))
                    .cloned()
                    .collect()
            };
            let (new, missing) = (lacking(&ours, &theirs), lacking(&theirs, &ours));
            failed.push(format!(
                "{}: new {new:?}, missing {missing:?}",
                stack.label()
            ));
        }
        let config = |folder: &Path| fs::read(folder.join("config.json")).unwrap();
        assert_eq!(config(&path), config(&stack.folder()));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// GPT-2's smallest blocks, drawn.
fn drawn() -> (Architecture, Parameters) {
    let architecture = Architecture::open(weights("tiny-gpt2")).unwrap();
    let initialization = architecture.initialization.clone();
    let fresh = Fresh::new(initialization, 1, DType::F32, &Device::Cpu);
    fresh.stack(&architecture.config).unwrap();
    (architecture, fresh.parameters())
}

#[test]
fn a_fresh_stack_saved_in_shards_opens_with_the_same_parameters() {
    let (architecture, parameters) = drawn();
    let folder = tempfile::tempdir().unwrap();
    let blocks = parameters.iter().map(|(role, v)| (role, v.as_tensor()));
    let options = SaveOptions::default().max_shard_bytes(10_000);
    options
        .save_new(&architecture, folder.path(), blocks, &[])
        .unwrap();
    assert!(folder.path().join("model.safetensors.index.json").is_file());
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let loader = checkpoint.trainable(DType::F32, &Device::Cpu).unwrap();
    loader.stack().unwrap();
    let reopened = loader.parameters();
    assert_eq!(reopened.len(), parameters.len());
    for ((role, theirs), (known, ours)) in parameters.iter().zip(&reopened) {
        assert_eq!((role, bits(theirs)), (known, bits(ours)));
    }
}

#[test]
fn incomplete_new_checkpoints_are_refused_and_leave_no_file() {
    let (architecture, parameters) = drawn();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new");
    let all = || -> Vec<(String, Tensor)> {
        let pairs = parameters.iter();
        pairs
            .map(|(role, v)| (role.clone(), v.as_tensor().clone()))
            .collect()
    };
    let refused = |blocks: Vec<(String, Tensor)>, others: &[(String, Tensor)], culprit: &str| {
        let blocks = blocks.iter().map(|(role, tensor)| (role, tensor));
        let message = architecture
            .save(&path, blocks, others)
            .unwrap_err()
            .to_string();
        assert!(message.contains(culprit), "{message}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{message}");
    };
    let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, &Device::Cpu).unwrap();
    let one = |name: &str| (name.to_string(), zeros(&[3]));
    let with = |extra| [all(), vec![extra]].concat();
    refused(all()[1..].to_vec(), &[], &all()[0].0);
    refused(with(all()[3].clone()), &[], "given twice");
    refused(
        with(one("blocks.0.atention.key.bias")),
        &[],
        "blocks.0.attention.key.bias",
    );
    refused(all(), &[one("h.0.ln_1.weight")], "h.0.ln_1.weight");
    refused(all(), &[one("wte.weight"), one("wte.weight")], "wte.weight");
    let (mut halved, role) = (all(), "blocks.0.attention.key.weight");
    let key = halved.iter_mut().find(|(known, _)| known == role).unwrap();
    key.1 = key.1.to_dtype(DType::F16).unwrap();
    refused(halved, &[], role);
    let mut short = all();
    short[0].1 = zeros(&[2, 2]);
    refused(short, &[], "shape [2, 2]");
}
