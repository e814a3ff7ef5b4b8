//! A checkpoint that is saved is the one that was loaded, but for what was changed.

use std::{collections::HashMap, fs, path::Path};

use candle_blocks::{
    Checkpoint, CheckpointOptions, SaveOptions, Strictness,
    candle_core::{DType, Device, Tensor},
    checkpoint::write::write_safetensors,
};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};

use crate::{
    all::all,
    committed::Committed,
    numbers::{bits, numbers},
    stored::{differing, names, random, stored},
    trained::trained,
    weights::weights,
};

/// Opens the same stack in the saved copy.
fn reopened(committed: &Committed, directory: &Path) -> Checkpoint {
    let copy = committed.options().open(directory).unwrap();
    assert_eq!(copy.report(), committed.open().report());
    copy
}

#[test]
fn every_checkpoint_comes_back_bit_for_bit() {
    for committed in all() {
        let (folder, checkpoint) = (committed.folder(), committed.open());
        let out = tempfile::tempdir().unwrap();
        checkpoint
            .save(out.path(), trained(&checkpoint, DType::F32))
            .unwrap();
        assert_eq!(names(out.path()), ["config.json", "model.safetensors"]);
        let changed = differing(&stored(&folder), &stored(out.path()));
        assert!(changed.is_empty(), "{}: {changed:?}", committed.label());
        let config = |folder: &Path| fs::read(folder.join("config.json")).unwrap();
        assert_eq!(config(&folder), config(out.path()));
    }
}

#[test]
fn changed_parameters_of_every_checkpoint_arrive_and_the_rest_stays() {
    for committed in all() {
        let (folder, checkpoint) = (committed.folder(), committed.open());
        let out = tempfile::tempdir().unwrap();
        let given = trained(&checkpoint, DType::F32);
        for (_, variable) in &given {
            variable.set(&random(variable.dims())).unwrap();
        }
        checkpoint.save(out.path(), given.clone()).unwrap();
        let found = trained(&reopened(&committed, out.path()), DType::F32);
        assert_eq!(given.len(), found.len());
        for ((role, ours), (_, theirs)) in given.iter().zip(&found) {
            assert_eq!(bits(ours), bits(theirs), "{}: {role}", committed.label());
        }
        let used: Vec<String> = checkpoint
            .report()
            .used
            .into_iter()
            .map(|t| t.name)
            .collect();
        for name in differing(&stored(&folder), &stored(out.path())) {
            assert!(used.contains(&name), "{}: {name}", committed.label());
        }
    }
}

#[test]
fn one_changed_role_changes_its_tensor_and_no_role_beside_it() {
    for committed in all() {
        let (folder, checkpoint) = (committed.folder(), committed.open());
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
            committed.label()
        );
        let after = trained(&reopened(&committed, out.path()), DType::F32);
        for ((other, was), (_, is)) in before.iter().zip(&after) {
            let expected = change.get(other).unwrap_or(was);
            assert_eq!(bits(is), bits(expected), "{}: {other}", committed.label());
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
