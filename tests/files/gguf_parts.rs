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
fn a_part_of_another_name_or_place_is_refused() {
    if !is_present("gguf-parts") {
        return;
    }
    let folder = parts(&[2, 3]);
    let renamed = folder.path().join("renamed.gguf");
    fs::rename(folder.path().join(part(1)), &renamed).unwrap();
    let said = refusal(&renamed);
    assert!(
        said.contains("part 1 of 3") && said.contains("--merge"),
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
