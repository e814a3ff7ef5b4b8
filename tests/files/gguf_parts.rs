//! A GGUF file in parts, which the package `gguf` wrote, beside the same file in one.

use std::fs;
use std::path::{Path, PathBuf};

use candle_blocks::checkpoint::files::TensorFiles;
use candle_blocks::{Checkpoint, Error};

use crate::weights::{is_present, weights};

const N: usize = 3;

fn part(i: usize) -> String {
    format!("model-{i:05}-of-{N:05}.gguf")
}

/// Returns a folder with all parts except those in `left_out`.
fn parts(left_out: &[usize]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for i in (1..=N).filter(|i| !left_out.contains(i)) {
        let from = weights("gguf-parts").join(part(i));
        fs::copy(from, folder.path().join(part(i))).unwrap();
    }
    folder
}

fn refusal(path: impl AsRef<Path>) -> String {
    let error = TensorFiles::open(path).unwrap_err();
    assert!(matches!(error, Error::NotGguf { .. }), "{error:?}");
    error.to_string()
}

#[test]
fn parts_open_from_any_of_them_and_from_their_folder() {
    if !is_present("gguf") {
        return;
    }
    let whole = TensorFiles::open(weights("gguf/qwen2/model.gguf")).unwrap();
    let folder = weights("gguf-parts");
    let paths = (1..=N).map(|i| folder.join(part(i)));
    for path in paths.chain([folder.clone()]) {
        let files = TensorFiles::open(&path).unwrap();
        assert!(files.names().eq(whole.names()), "{path:?}");
        for name in whole.names() {
            let [one, other] =
                [&files, &whole].map(|files| files.read(name).unwrap().to_vec1::<u8>().unwrap());
            assert!(one == other, "{name} of {path:?}");
        }
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.family(), "qwen2");
        assert!(checkpoint.report().missing.is_empty(), "{path:?}");
    }
}

#[test]
fn a_part_that_is_missing_is_named() {
    if !is_present("gguf-parts") {
        return;
    }
    let folder = parts(&[2]);
    let paths: [PathBuf; 3] =
        [part(1), part(3), String::new()].map(|name| folder.path().join(name));
    for path in paths {
        let said = refusal(path);
        assert!(
            said.contains("one of 3 parts") && said.contains(&part(2)),
            "{said}"
        );
        let (_, missing) = said.split_once("missing").unwrap();
        assert!(!missing.contains(&part(3)), "{said}");
    }
}

#[test]
fn the_extension_may_have_capitals() {
    if !is_present("gguf-parts") {
        return;
    }
    let folder = parts(&[]);
    let capitals = |i| folder.path().join(part(i).replace(".gguf", ".GGUF"));
    for i in 1..=N {
        fs::rename(folder.path().join(part(i)), capitals(i)).unwrap();
    }
    for path in [folder.path().to_path_buf(), capitals(1), capitals(3)] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert!(checkpoint.report().missing.is_empty(), "{path:?}");
    }
    fs::remove_file(capitals(1)).unwrap();
    let said = refusal(folder.path());
    assert!(
        said.contains("1 is missing: model-00001-of-00003.GGUF"),
        "{said}"
    );

    let whole = tempfile::tempdir().unwrap();
    let path = whole.path().join("MODEL.GGUF");
    fs::copy(weights("gguf/qwen2/model.gguf"), path).unwrap();
    assert_eq!(Checkpoint::open(whole.path()).unwrap().family(), "qwen2");
}

#[test]
fn a_part_of_another_name_or_place_is_refused() {
    if !is_present("gguf-parts") {
        return;
    }
    let folder = parts(&[2, 3]);
    let renamed = folder.path().join("renamed.gguf");
    fs::rename(folder.path().join(part(1)), &renamed).unwrap();
    let said = refusal(&renamed);
    assert!(
        said.contains("part 1 of 3") && said.contains("NAME-00001-of-00003.gguf"),
        "{said}"
    );

    let folder = parts(&[]);
    fs::copy(folder.path().join(part(1)), folder.path().join(part(2))).unwrap();
    let said = refusal(folder.path().join(part(1)));
    assert!(
        said.contains("part 2 of 3") && said.contains("split.no"),
        "{said}"
    );
}

/// Returns a GGUF file with these keys and no tensors.
fn without_tensors(keys: &[(&str, &str)]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(0u64.to_le_bytes());
    bytes.extend((keys.len() as u64).to_le_bytes());
    for (key, text) in keys {
        bytes.extend([string(key), 8u32.to_le_bytes().to_vec(), string(text)].concat());
    }
    bytes
}

#[test]
fn files_that_are_no_model_do_not_count_in_a_folder() {
    if !is_present("gguf-parts") {
        return;
    }
    let folder = parts(&[]);
    for (name, keys) in [
        ("mmproj-F16.gguf", [("general.architecture", "clip")]),
        ("a-vision.gguf", [("general.type", "mmproj")]),
        ("imatrix.gguf", [("general.type", "imatrix")]),
        ("lora.gguf", [("general.type", "adapter")]),
    ] {
        fs::write(folder.path().join(name), without_tensors(&keys)).unwrap();
    }
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(checkpoint.family(), "qwen2");

    // Of two models, one must be chosen; parts after the first are not among the names.
    let other = without_tensors(&[("general.architecture", "llama")]);
    fs::write(folder.path().join("other.gguf"), other).unwrap();
    let said = TensorFiles::open(folder.path()).unwrap_err().to_string();
    let expected = format!(
        "several GGUF files: {}, other.gguf; open one of them",
        part(1)
    );
    assert!(said.contains(&expected), "{said}");
}
