//! A save that cannot be done says why and leaves what was there; one that may replace a directory replaces all of it.

use std::{collections::HashMap, fs};

use candle_blocks::{
    Checkpoint, CheckpointOptions, Error, SaveOptions, Strictness,
    candle_core::{DType, Device, Tensor},
    checkpoint::ExistingFiles,
};

use crate::{
    numbers::bits,
    said::assert_says,
    stored::{differing, files, names, random, stored},
    trained::trained,
    weights::weights,
};

/// Checks that saving `change` fails, names all `words`, and leaves no files.
#[track_caller]
fn refused(change: &[(&str, Tensor)], words: &[&str]) {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let change = change.iter().map(|(role, tensor)| (*role, tensor));
    let error = checkpoint
        .save(folder.path().join("out"), change)
        .unwrap_err();
    assert!(matches!(error, Error::InvalidInput { .. }), "{error:?}");
    assert_says(&error, words);
    assert!(files(folder.path()).is_empty());
}

#[test]
fn parameters_that_do_not_fit_are_refused_by_role() {
    let bias = |n: usize, dtype| Tensor::zeros(n, dtype, &Device::Cpu).unwrap();
    let role = "blocks.0.attention_norm.bias";
    refused(
        &[("blocks.0.attention_norm.bais", bias(24, DType::F32))],
        &["blocks.0.attention_norm.bais", "nearest", role],
    );
    refused(&[(role, bias(25, DType::F32))], &[role, "[25]", "[24]"]);
    refused(&[(role, bias(24, DType::U32))], &[role, "u32"]);
    let twice = bias(24, DType::F32);
    refused(&[(role, twice.clone()), (role, twice)], &[role, "twice"]);
}

#[test]
fn a_value_beyond_the_files_type_is_refused_and_no_infinity() {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2-f16")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let role = "blocks.0.attention_norm.bias";
    let save = |value: f32| {
        let size = checkpoint.config().blocks[0].d_model();
        let value = Tensor::full(value, size, &Device::Cpu).unwrap();
        let out = folder.path().join("out");
        checkpoint.save(out, &HashMap::from([(role.to_string(), value)]))
    };
    // The largest f16 is 65504; from 65520 on, rounding would give infinity.
    let text = save(65520.0).unwrap_err().to_string();
    assert!(text.contains(role) && text.contains("f16"), "{text}");
    assert!(files(folder.path()).is_empty());
    save(65519.0).unwrap();
}

#[test]
fn a_directory_that_holds_anything_is_left_as_it_is() {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    checkpoint
        .save(&out, trained(&checkpoint, DType::F32))
        .unwrap();
    let copy = Checkpoint::open(&out).unwrap();
    let before = stored(&out);
    let error = copy.save(&out, trained(&copy, DType::F32)).unwrap_err();
    assert!(
        error.to_string().contains("ExistingFiles::Replace"),
        "{error}"
    );

    // Nor is it replaced with anything else in it.
    fs::write(out.join("notes.txt"), "mine").unwrap();
    let replace = SaveOptions::default().existing(ExistingFiles::Replace);
    let error = replace
        .save(&copy, &out, trained(&copy, DType::F32))
        .unwrap_err();
    assert!(error.to_string().contains("notes.txt"), "{error}");
    assert!(differing(&before, &stored(&out)).is_empty());
    assert_eq!(names(folder.path()), ["out"]);
}

#[test]
#[cfg_attr(windows, ignore = "Windows renames no directory whose files are open")]
fn a_checkpoint_can_take_the_place_of_the_one_it_was_opened_from() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let original = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    original.save(&out, trained(&original, DType::F32)).unwrap();
    let replace = SaveOptions::default()
        .existing(ExistingFiles::Replace)
        .max_shard_bytes(3000);

    let copy = Checkpoint::open(&out).unwrap();
    let given = trained(&copy, DType::F32);
    for (_, variable) in &given {
        variable.set(&random(variable.dims())).unwrap();
    }
    replace.save(&copy, &out, given.clone()).unwrap();
    let found = trained(&Checkpoint::open(&out).unwrap(), DType::F32);
    for ((role, ours), (_, theirs)) in given.iter().zip(&found) {
        assert_eq!(bits(ours), bits(theirs), "{role}");
    }
    assert!(!out.join("model.safetensors").exists());
    assert_eq!(names(folder.path()), ["out"]);
}

#[test]
fn a_place_that_cannot_be_written_is_named() {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    for out in [file.clone(), file.join("below")] {
        let error = checkpoint
            .save(&out, trained(&checkpoint, DType::F32))
            .unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error:?}");
        assert!(error.to_string().contains("file"), "{error}");
    }
    assert_eq!(fs::read(file).unwrap(), b"mine");
    assert_eq!(names(folder.path()), ["file"]);
}

/// A damaged source is detected in the middle of writing; no part of the copy remains.
#[test]
fn a_source_that_is_cut_short_leaves_no_copy() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    let out = folder.path().join("out");
    let original = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    original
        .save(&source, trained(&original, DType::F32))
        .unwrap();
    let checkpoint = Checkpoint::open(&source).unwrap();
    let parameters = trained(&checkpoint, DType::F32);
    let weights = fs::OpenOptions::new()
        .write(true)
        .open(source.join("model.safetensors"));
    let weights = weights.unwrap();
    weights
        .set_len(weights.metadata().unwrap().len() / 2)
        .unwrap();
    let error = checkpoint.save(&out, parameters).unwrap_err();
    assert!(error.to_string().contains("cut short"), "{error}");
    assert_eq!(names(folder.path()), ["source"]);
}

#[test]
fn every_saved_parameter_has_a_name_on_disk() {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let to_disk = |role: &str, size: usize| {
        let tensor = Tensor::zeros(size, DType::F32, &Device::Cpu).unwrap();
        checkpoint.to_disk(&HashMap::from([(role.to_string(), tensor)]))
    };
    let role = "blocks.0.attention_norm.bias";
    assert_eq!(to_disk(role, 24).unwrap().len(), 1);
    let error = to_disk("blocks.0.attention_norm.bais", 24).unwrap_err();
    assert_says(&error, &["blocks.0.attention_norm.bais", "nearest", role]);
    let error = to_disk(role, 25).unwrap_err();
    assert_says(&error, &[role, "[25]", "[24]"]);
}

/// A custom table in which two roles use the same part of a tensor: it is unclear which of them to save.
#[test]
fn roles_that_share_features_cannot_be_saved() {
    let text = fs::read_to_string(weights("../examples/family.json")).unwrap();
    let key = "attention.self.key";
    assert!(text.contains(key), "the example has changed");
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table.json");
    fs::write(&table, text.replace(key, "attention.self.query")).unwrap();
    let options = CheckpointOptions::default().family_file(table);
    let options = options.strictness(Strictness::AllowUnused);
    let checkpoint = options.open(weights("tiny-bert")).unwrap();
    let out = folder.path().join("out");
    let error = checkpoint
        .save(&out, trained(&checkpoint, DType::F32))
        .unwrap_err();
    let roles = ["blocks.0.attention.query.", "blocks.0.attention.key."];
    assert_says(&error, &roles);
    assert_says(&error, &["encoder.layer.0.attention.self.query.", "share"]);
    assert!(!out.exists());
}

#[test]
fn a_part_that_is_not_as_wide_as_its_role_is_refused_when_the_table_is_used() {
    let text = fs::read_to_string(weights("../examples/family.json")).unwrap();
    let rule = r#""role": "feed_forward.up","#;
    assert!(text.contains(rule), "the example has changed");
    let folder = tempfile::tempdir().unwrap();
    let table = folder.path().join("table.json");
    let part = format!(r#"{rule} "part": {{"fused": ["blocks", "query"]}},"#);
    fs::write(&table, text.replace(rule, &part)).unwrap();
    let options = CheckpointOptions::default().family_file(table);
    let error = options.open(weights("tiny-bert")).unwrap_err();
    assert_says(
        &error,
        &["feed_forward.up", "my_bert", "output features", "`part`"],
    );
}
