//! A checkpoint that is saved is the one that was loaded, but for what was changed.

mod common;

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
};

use candle_blocks::{
    Checkpoint, CheckpointOptions, Error, Existing, Parameters, SaveOptions, StackPart, Strictness,
    candle_core::{DType, Device, Tensor},
    checkpoint::write::write_safetensors,
};
use common::{bits, fixtures, folders, numbers, present, weights};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

/// Type, shape and bytes of every tensor, by the `safetensors` crate's own reading.
type Stored = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn stored(directory: &Path) -> Stored {
    let mut tensors = Stored::new();
    for path in files(directory) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name.starts_with("model") && name.ends_with(".safetensors") {
            let bytes = fs::read(&path).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
                let content = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
                assert!(tensors.insert(name.to_string(), content).is_none());
            }
        }
    }
    assert!(!tensors.is_empty(), "{}", directory.display());
    tensors
}

/// The names of the tensors that differ.
fn differing(one: &Stored, other: &Stored) -> Vec<String> {
    assert!(one.keys().eq(other.keys()), "other names");
    let differs = |name: &&String| one[*name] != other[*name];
    one.keys().filter(differs).cloned().collect()
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn names(directory: &Path) -> Vec<String> {
    let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_string();
    files(directory).iter().map(name).collect()
}

/// Every committed checkpoint and every stack in it.
fn checkpoints() -> Vec<(PathBuf, Checkpoint)> {
    let tiny = ["tiny-bert", "tiny-gpt2", "tiny-bert-bf16", "tiny-gpt2-f16"].map(weights);
    let real = present(["minilm-block0"], |name| name).into_iter();
    let folders = tiny.into_iter().chain(real.map(weights)).chain(folders());
    let mut found = Vec::new();
    for folder in folders {
        for (_, part) in fixtures(&folder) {
            found.push((folder.clone(), open_part(&folder, part)));
        }
    }
    found
}

fn open_part(folder: &Path, part: Option<StackPart>) -> Checkpoint {
    let options = match part {
        Some(part) => CheckpointOptions::default().part(part),
        None => CheckpointOptions::default(),
    };
    options.open(folder).unwrap_or_else(|e| panic!("{e}"))
}

fn trained(checkpoint: &Checkpoint, dtype: DType) -> Parameters {
    let loader = checkpoint.trainable(dtype, &Device::Cpu).unwrap();
    loader.stack().unwrap();
    loader.parameters()
}

/// The same stack of the saved copy.
fn reopened(checkpoint: &Checkpoint, directory: &Path) -> Checkpoint {
    let copies = [
        None,
        Some(StackPart::Encoder),
        Some(StackPart::Decoder),
        Some(StackPart::Text),
        Some(StackPart::Vision),
    ]
    .map(|part| match part {
        Some(part) => CheckpointOptions::default().part(part).open(directory),
        None => Checkpoint::open(directory),
    });
    let same = |copy: &Checkpoint| copy.report() == checkpoint.report();
    copies.into_iter().flatten().find(same).unwrap()
}

/// Random values that every floating type holds exactly.
fn random(shape: &[usize]) -> Tensor {
    let values = Tensor::rand(-64f32, 64f32, shape, &Device::Cpu).unwrap();
    (values.round().unwrap() / 64.0).unwrap()
}

#[test]
fn every_checkpoint_comes_back_bit_for_bit() {
    for (folder, checkpoint) in checkpoints() {
        let out = tempfile::tempdir().unwrap();
        checkpoint
            .save(out.path(), trained(&checkpoint, DType::F32))
            .unwrap();
        assert_eq!(names(out.path()), ["config.json", "model.safetensors"]);
        let changed = differing(&stored(&folder), &stored(out.path()));
        assert!(changed.is_empty(), "{}: {changed:?}", folder.display());
        let config = |folder: &Path| fs::read(folder.join("config.json")).unwrap();
        assert_eq!(config(&folder), config(out.path()));
    }
}

#[test]
fn changed_parameters_of_every_checkpoint_arrive_and_the_rest_stays() {
    for (folder, checkpoint) in checkpoints() {
        let out = tempfile::tempdir().unwrap();
        let given = trained(&checkpoint, DType::F32);
        for (_, variable) in &given {
            variable.set(&random(variable.dims())).unwrap();
        }
        checkpoint.save(out.path(), given.clone()).unwrap();
        let found = trained(&reopened(&checkpoint, out.path()), DType::F32);
        assert_eq!(given.len(), found.len());
        for ((role, ours), (_, theirs)) in given.iter().zip(&found) {
            assert_eq!(bits(ours), bits(theirs), "{}: {role}", folder.display());
        }
        let used: Vec<String> = checkpoint
            .report()
            .used
            .into_iter()
            .map(|t| t.name)
            .collect();
        for name in differing(&stored(&folder), &stored(out.path())) {
            assert!(used.contains(&name), "{}: {name}", folder.display());
        }
    }
}

#[test]
fn one_changed_role_changes_its_tensor_and_no_role_beside_it() {
    for (folder, checkpoint) in checkpoints() {
        let before = trained(&checkpoint, DType::F32);
        let report = checkpoint.report();
        // A role that shares its tensor, where there is one.
        let shared = report.used.iter().max_by_key(|t| t.roles.len()).unwrap();
        let role = shared.roles.last().unwrap();
        let (_, variable) = before.iter().find(|(r, _)| r == role).unwrap();
        let change = HashMap::from([(role.clone(), random(variable.dims()))]);
        let out = tempfile::tempdir().unwrap();
        checkpoint.save(out.path(), &change).unwrap();
        assert_eq!(
            differing(&stored(&folder), &stored(out.path())),
            std::slice::from_ref(&shared.name),
            "{}",
            folder.display()
        );
        let after = trained(&reopened(&checkpoint, out.path()), DType::F32);
        for ((other, was), (_, is)) in before.iter().zip(&after) {
            let expected = change.get(other).unwrap_or(was);
            assert_eq!(bits(is), bits(expected), "{}: {other}", folder.display());
        }
    }
}

#[test]
fn shards_hold_what_a_single_file_holds() {
    for (name, limit) in [
        ("tiny-bert", 4096),
        ("tiny-gpt2-f16", 500),
        ("tiny-bert", 1),
    ] {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        let out = tempfile::tempdir().unwrap();
        let options = SaveOptions::default().max_shard_bytes(limit);
        let parameters = trained(&checkpoint, DType::F32);
        options.save(&checkpoint, out.path(), parameters).unwrap();
        let written = stored(out.path());
        assert!(differing(&stored(&weights(name)), &written).is_empty());

        let index = fs::read(out.path().join("model.safetensors.index.json")).unwrap();
        let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
        let sizes = written.values().map(|(_, _, bytes)| bytes.len());
        assert_eq!(index["metadata"]["total_size"], sizes.sum::<usize>());
        let map = index["weight_map"].as_object().unwrap();
        assert!(map.keys().eq(written.keys()));

        let n_shards = names(out.path()).len() - 2; // config.json and the index
        for i in 1..=n_shards {
            let file = format!("model-{i:05}-of-{n_shards:05}.safetensors");
            let bytes = fs::read(out.path().join(&file)).unwrap();
            let shard = SafeTensors::deserialize(&bytes).unwrap();
            let n_bytes: usize = shard.iter().map(|(_, view)| view.data().len()).sum();
            assert!(
                n_bytes as u64 <= limit || shard.len() == 1,
                "{file}: {n_bytes}"
            );
            assert!(
                shard.names().iter().all(|&name| map[name] == file),
                "{file}"
            );
        }
        let reopened = Checkpoint::open(out.path()).unwrap();
        assert_eq!(reopened.report(), checkpoint.report());
        // And back into one file.
        let single = tempfile::tempdir().unwrap();
        reopened
            .save(single.path(), trained(&reopened, DType::F32))
            .unwrap();
        assert!(differing(&written, &stored(single.path())).is_empty());
    }
}

#[test]
fn files_keep_their_type_whatever_was_trained() {
    for (name, dtype) in [
        ("tiny-bert", Dtype::F32),
        ("tiny-bert-bf16", Dtype::BF16),
        ("tiny-gpt2-f16", Dtype::F16),
    ] {
        let checkpoint = Checkpoint::open(weights(name)).unwrap();
        for trained_as in [DType::F64, DType::F32] {
            let out = tempfile::tempdir().unwrap();
            checkpoint
                .save(out.path(), trained(&checkpoint, trained_as))
                .unwrap();
            let written = stored(out.path());
            assert!(differing(&stored(&weights(name)), &written).is_empty());
            let used = checkpoint.report().used;
            assert!(used.iter().all(|t| written[&t.name].0 == dtype));
        }
    }
}

#[test]
fn f64_files_keep_all_their_bits() {
    let folder = tempfile::tempdir().unwrap();
    let source = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let widened = source.files().names().map(|name| {
        let tensor = source
            .files()
            .read(name)
            .unwrap()
            .to_dtype(DType::F64)
            .unwrap();
        (name.to_string(), (tensor * (1.0 / 3.0)).unwrap())
    });
    let widened: Vec<(String, Tensor)> = widened.collect();
    write_safetensors(folder.path().join("model.safetensors"), &widened, None).unwrap();
    fs::copy(
        weights("tiny-gpt2/config.json"),
        folder.path().join("config.json"),
    )
    .unwrap();

    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let out = tempfile::tempdir().unwrap();
    checkpoint
        .save(out.path(), trained(&checkpoint, DType::F64))
        .unwrap();
    assert!(differing(&stored(folder.path()), &stored(out.path())).is_empty());
    // transformers refuses a file that does not say its format.
    let reopened = Checkpoint::open(out.path()).unwrap();
    assert_eq!(reopened.files().metadata()["format"], "pt");
}

#[test]
fn a_value_between_two_of_the_files_type_is_rounded_to_the_nearest() {
    let checkpoint = Checkpoint::open(weights("tiny-bert-bf16")).unwrap();
    let role = "blocks.0.feed_forward.up.bias";
    let size = checkpoint.config().blocks[0].feed_forward.d_ff;
    // bf16 keeps eight bits: of 256 and 258, 257.5 is nearer to the latter.
    let value = Tensor::full(257.5f32, size, &Device::Cpu).unwrap();
    let out = tempfile::tempdir().unwrap();
    let change = HashMap::from([(role.to_string(), value)]);
    checkpoint.save(out.path(), &change).unwrap();
    let found = trained(&Checkpoint::open(out.path()).unwrap(), DType::F32);
    let (_, found) = found.iter().find(|(r, _)| r == role).unwrap();
    assert_eq!(numbers(found), vec![258.0; size]);
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
fn types_that_candle_lacks_and_unknown_tensors_are_copied() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = fs::read(weights("tiny-bert/model.safetensors")).unwrap();
    let mut tensors: Vec<(String, TensorView)> =
        SafeTensors::deserialize(&bytes).unwrap().tensors();
    let ones = [1u8; 16];
    for dtype in [Dtype::BOOL, Dtype::F8_E4M3, Dtype::I8, Dtype::U64] {
        let data = &ones[..2 * dtype.bitsize() / 8];
        let view = TensorView::new(dtype, vec![2], data).unwrap();
        tensors.push((format!("extra.{dtype:?}"), view));
    }
    let path = folder.path().join("model.safetensors");
    fs::write(path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    fs::copy(
        weights("tiny-bert/config.json"),
        folder.path().join("config.json"),
    )
    .unwrap();

    let options = CheckpointOptions::default().strictness(Strictness::AllowUnused);
    let checkpoint = options.open(folder.path()).unwrap();
    let out = tempfile::tempdir().unwrap();
    checkpoint
        .save(out.path(), trained(&checkpoint, DType::F32))
        .unwrap();
    assert!(differing(&stored(folder.path()), &stored(out.path())).is_empty());
}

#[test]
fn a_config_from_elsewhere_goes_with_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let lone = folder.path().join("any-name.safetensors");
    fs::copy(weights("tiny-gpt2/model.safetensors"), &lone).unwrap();
    let options = CheckpointOptions::default().config(weights("tiny-gpt2/config.json"));
    let checkpoint = options.open(&lone).unwrap();
    let out = folder.path().join("made/of/several");
    checkpoint
        .save(&out, trained(&checkpoint, DType::F32))
        .unwrap();
    assert_eq!(
        Checkpoint::open(&out).unwrap().report(),
        checkpoint.report()
    );
}

/// Saving `change` fails, names all `words`, and leaves nothing behind.
#[track_caller]
fn refused(change: &[(&str, Tensor)], words: &[&str]) {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let change = change.iter().map(|(role, tensor)| (*role, tensor));
    let error = checkpoint
        .save(folder.path().join("out"), change)
        .unwrap_err();
    assert!(matches!(error, Error::InvalidInput { .. }), "{error:?}");
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
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
    assert!(error.to_string().contains("Existing::Replace"), "{error}");

    // Nor is it replaced with anything else in it.
    fs::write(out.join("tokenizer.json"), "{}").unwrap();
    let replace = SaveOptions::default().existing(Existing::Replace);
    let error = replace
        .save(&copy, &out, trained(&copy, DType::F32))
        .unwrap_err();
    assert!(error.to_string().contains("tokenizer.json"), "{error}");
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
        .existing(Existing::Replace)
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

/// A damaged source is found half-way through writing; nothing of the copy stays.
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
