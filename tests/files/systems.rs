//! Paths and open files that Windows treats in another way than Unix.

use std::{collections::HashMap, fs};

use candle_blocks::{
    Checkpoint, Error, SaveOptions, Weights,
    candle_core::{DType, Device, Tensor},
    checkpoint::{ExistingFiles, files::TensorFiles, write::write_safetensors},
};

use crate::{
    folder::folder,
    said::assert_says,
    stored::{names, random, stored},
    weights::weights,
};

fn tensor(value: f32) -> Vec<(String, Tensor)> {
    let tensor = Tensor::full(value, 3, &Device::Cpu).unwrap();
    vec![("weight".to_string(), tensor)]
}

/// A 32-bit program addresses 4 GiB.
#[test]
#[cfg(target_pointer_width = "32")]
fn a_file_that_no_address_reaches_is_refused_by_its_size() {
    let folder = folder();
    let path = folder.path().join("m.safetensors");
    fs::File::create(&path).unwrap().set_len(5 << 30).unwrap();
    let error = TensorFiles::open(&path).unwrap_err();
    assert_says(
        &error,
        &["m.safetensors", "5368709120 bytes", "32-bit", "4294967296"],
    );
}

/// Windows takes 260 characters from programs that do not ask for more.
#[test]
fn a_path_may_be_long() {
    let folder = folder();
    let mut long = folder.path().to_path_buf();
    for letter in ["a", "b", "c"] {
        long.push(letter.repeat(120));
    }
    fs::create_dir_all(&long).unwrap();
    let file = long.join("model.safetensors");
    for value in [1.0, 2.0] {
        write_safetensors(&file, &tensor(value), None).unwrap();
        let found = TensorFiles::open(&file).unwrap();
        assert_eq!(
            found.read("weight").unwrap().to_vec1::<f32>().unwrap(),
            [value; 3]
        );
    }
    assert_eq!(names(&long), ["model.safetensors"]);
    let saved = long.join("saved");
    let unchanged = HashMap::<String, Tensor>::new();
    Checkpoint::open(weights("tiny-gpt2"))
        .unwrap()
        .save(&saved, &unchanged)
        .unwrap();
    let block = Checkpoint::open(&saved)
        .unwrap()
        .load(Weights::Dense(DType::F32, &Device::Cpu))
        .block(0);
    block.unwrap();
    assert_eq!(names(&long), ["model.safetensors", "saved"]);
}

/// Windows keeps some names for devices, changes others, and would write the rest to a place that nobody lists.
#[test]
fn names_that_windows_has_no_files_for_are_refused_there() {
    let checkpoint = Checkpoint::open(weights("tiny-gpt2")).unwrap();
    for name in [
        "NUL",
        "con.safetensors",
        "Lpt1.tar.gz",
        "model.",
        "model ",
        "model:x",
    ] {
        let folder = folder();
        let path = folder.path().join(name);
        let unchanged = HashMap::<String, Tensor>::new();
        let written = write_safetensors(&path, &tensor(1.0), None);
        let _ = fs::remove_file(&path);
        let saved = checkpoint.save(&path, &unchanged);
        for result in [written, saved] {
            match cfg!(windows) {
                false => result.unwrap(),
                true => {
                    let error = result.unwrap_err();
                    assert!(matches!(error, Error::Io { .. }), "{error:?}");
                    assert_says(&error, &[name, "Windows"]);
                    assert_eq!(names(folder.path()), [""; 0]);
                }
            }
        }
    }
}

/// Windows may refuse to replace a file that is open, by whoever opened it, and to rename its directory. Nothing may be
/// lost then.
#[test]
fn an_open_file_is_replaced_or_stays_whole() {
    let folder = folder();
    let path = folder.path().join("m.safetensors");
    write_safetensors(&path, &tensor(1.0), None).unwrap();
    let open = TensorFiles::open(&path).unwrap();
    let replaced = write_safetensors(&path, &tensor(2.0), None);
    let value = open.read("weight").unwrap().to_vec1::<f32>().unwrap()[0];
    assert_eq!(value, 1.0);
    let found = TensorFiles::open(&path).unwrap().read("weight").unwrap();
    let found = found.to_vec1::<f32>().unwrap()[0];
    assert_eq!(found, if replaced.is_ok() { 2.0 } else { 1.0 });
    allowed("m.safetensors", replaced);
    assert_eq!(names(folder.path()), ["m.safetensors"]);
    drop(open);
    write_safetensors(&path, &tensor(3.0), None).unwrap();

    let directory = folder.path().join("saved");
    let unchanged = HashMap::<String, Tensor>::new();
    Checkpoint::open(weights("tiny-gpt2"))
        .unwrap()
        .save(&directory, &unchanged)
        .unwrap();
    let before = stored(&directory);
    let open = Checkpoint::open(&directory).unwrap();
    let role = "blocks.0.attention_norm.bias";
    let bias = random(&[open.config().blocks[0].d_model()]);
    let options = SaveOptions::default().existing(ExistingFiles::Replace);
    let changed = HashMap::from([(role.to_string(), bias)]);
    let replaced = options.save(&open, &directory, &changed);
    assert_eq!(stored(&directory) == before, replaced.is_err());
    allowed("saved", replaced);
    let mut left = names(folder.path());
    if cfg!(windows) {
        left.retain(|name| !name.starts_with(".saving-")); // the old directory, while a file in it is open
    }
    assert_eq!(left, ["m.safetensors", "saved"]);
}

/// Only Windows may refuse, and says what to do.
fn allowed(name: &str, result: candle_blocks::Result<()>) {
    match result {
        Err(error) if cfg!(windows) => assert_says(
            &error,
            &[name, "open", "close it, or write to another place"],
        ),
        result => result.unwrap(),
    }
}
