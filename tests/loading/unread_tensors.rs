//! Tensors beside the embeddings, the pooler and the head that no part of the model reads: the report names them.

use std::collections::BTreeSet;
use std::path::Path;

use candle_blocks::candle_core::{DType, Device};
use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks::{Checkpoint, CheckpointOptions, Weights};
use serde_json::{Value, json};

use crate::all::all;
use crate::committed::{Committed, present};
use crate::extra_tensors::{self, Extra};
use crate::weights::{is_present, weights};

/// Returns a copy of a checkpoint with these additional tensors, and keys.
fn with(folder: &Path, extra: &[&str], keys: &Value) -> tempfile::TempDir {
    let files = TensorFiles::open(folder).unwrap();
    let extra = extra.iter().filter(|name| !files.contains(name));
    let extra: Vec<Extra> = extra.map(|name| (*name, &[3, 2][..], 1.0)).collect();
    extra_tensors::with(folder, &extra, |config| {
        let keys = keys.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(keys);
    })
}

fn options(of: &Committed) -> CheckpointOptions {
    match of.part {
        // Opened with the other stack too.
        Some(_) => CheckpointOptions::default().whole(),
        None => CheckpointOptions::default(),
    }
}

#[test]
fn every_tensor_of_the_committed_models_is_read() {
    let mut n = 0;
    for stack in all() {
        let both = [stack.options(), options(&stack)];
        for checkpoint in both.map(|options| options.open(stack.folder()).unwrap()) {
            let report = checkpoint.report();
            assert_eq!(report.unread, [""; 0], "{}", stack.label());
            n += usize::from(!report.ends.is_empty());
        }
    }
    assert!(n >= 150 || !is_present("families/llama"), "only {n}");
}

/// A tensor beside each tensor that the embeddings, the pooler and the head read, with a name that none of them knows.
#[test]
fn a_stray_tensor_in_any_module_that_is_read_is_named() {
    let mut n = 0;
    for stack in all() {
        let folder = stack.folder();
        if !folder.join("model.safetensors").is_file() {
            continue;
        }
        let checkpoint = options(&stack).open(&folder).unwrap();
        let report = checkpoint.report();
        let modules: BTreeSet<&str> = (report.ends.iter())
            .filter_map(|used| used.name.trim_end_matches(".weight").rsplit_once('.'))
            .map(|(module, _)| module)
            .collect();
        let strays: Vec<String> = (modules.iter())
            .map(|module| format!("{module}.stray_table.weight"))
            .collect();
        let names: Vec<&str> = strays.iter().map(String::as_str).collect();
        let copy = with(&folder, &names, &json!({}));
        let report = options(&stack).open(copy.path()).unwrap().report();
        let named: BTreeSet<&String> = report.unread.iter().chain(&report.unused).collect();
        for stray in &strays {
            assert!(
                named.contains(stray),
                "{}: {stray} is silent",
                stack.label()
            );
            assert!(report.to_string().contains(&format!("unused: {stray}")));
            n += 1;
        }
    }
    assert!(n >= 200 || !is_present("families/llama"), "only {n}");
}

fn unread(folder: &Path) -> Vec<String> {
    CheckpointOptions::default()
        .whole()
        .open(folder)
        .unwrap()
        .report()
        .unread
}

/// Tables under a name that the family knows, which a model with this configuration does not have.
#[test]
fn a_table_that_the_configuration_switches_off_is_named() {
    let table = "embeddings.position_embeddings.weight";
    let types = "embeddings.token_type_embeddings.weight";
    for (name, extra) in present(
        [
            ("families/jina_embeddings_v3", format!("roberta.{table}")),
            ("families/gte", format!("gte.{table}")),
            ("families/distilbert", format!("distilbert.{types}")),
            ("families/modernbert", format!("model.{table}")),
            ("families/nomic_bert", format!("nomic_bert.{table}")),
            ("families/esm", format!("esm.{types}")),
        ],
        |case| case.0,
    ) {
        // Under the prefix of this file's own tensors.
        let files = Checkpoint::open(weights(name)).unwrap();
        let (prefix, local) = extra.split_once('.').unwrap();
        let has_prefix = files
            .files()
            .names()
            .any(|own| own.starts_with(&format!("{prefix}.")));
        let extra = if has_prefix { extra.as_str() } else { local };
        let copy = with(&weights(name), &[extra], &json!({}));
        assert_eq!(unread(copy.path()), [extra], "{name}");
    }
}

/// A head that is not loaded has tensors under known names. Any other tensor beside them is nobody's.
#[test]
fn a_stray_tensor_in_a_head_that_is_not_loaded_is_named() {
    for (name, stray, class) in present(
        [
            ("tiny-bert", "cls.stray.weight", "BertModel"),
            ("tiny-bert", "classifier.temperature", "BertForMaskedLM"),
            ("families/llama", "score.temperature", "LlamaForCausalLM"),
            (
                "families/roberta",
                "classifier.stray.weight",
                "RobertaForMaskedLM",
            ),
        ],
        |case| case.0,
    ) {
        let copy = with(&weights(name), &[stray], &json!({"architectures": [class]}));
        assert_eq!(unread(copy.path()), [stray], "{name}");
    }
}

/// Published files hold these. transformers' classes leave them out too, without a word or with a warning.
#[test]
fn tensors_of_other_parts_and_known_leftovers_are_not_named() {
    for (name, extra, keys) in present(
        [
            // Other heads of a model that was trained for several tasks.
            (
                "tiny-bert",
                &[
                    "cls.seq_relationship.weight",
                    "classifier.weight",
                    "qa_outputs.weight",
                ][..],
                json!({"architectures": ["BertForMaskedLM"]}),
            ),
            (
                "families/llama",
                &["score.weight"],
                json!({"architectures": ["LlamaForCausalLM"]}),
            ),
            (
                "families/esm",
                &["esm.contact_head.regression.weight"],
                json!({}),
            ),
            (
                "families/esm",
                &["esm.embeddings.position_embeddings.weight"],
                json!({}),
            ),
            (
                "families/deberta-v2",
                &["deberta.embeddings.position_embeddings.weight"],
                json!({"position_biased_input": false}),
            ),
            ("families/dinov2", &["embeddings.mask_token"], json!({})),
            (
                "families/t5",
                &["classification_head.dense.weight"],
                json!({"architectures": ["T5ForConditionalGeneration"]}),
            ),
        ],
        |case| case.0,
    ) {
        let copy = with(&weights(name), extra, &keys);
        assert_eq!(unread(copy.path()), [""; 0], "{name} {extra:?}");
    }
}

/// A table of ages, which code of one's own adds to BERT's three.
#[test]
fn blocks_alone_are_loaded_beside_an_unread_embedding() {
    let copy = with(
        &weights("tiny-bert"),
        &["embeddings.age_embeddings.weight"],
        &json!({}),
    );
    let checkpoint = Checkpoint::open(copy.path()).unwrap();
    assert_eq!(checkpoint.report().unused, [""; 0]);
    checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .stack()
        .unwrap();
    checkpoint
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .model()
        .unwrap();
}
