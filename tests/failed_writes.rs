//! A write leaves a whole file of the usual permissions, or what was there before.

mod common;
mod stored;

use std::fs;

use candle_blocks::{Error, checkpoint::write::write_safetensors};
use candle_core::{DType, Device, Tensor};
use common::assert_says;
use stored::{names, random};

fn sample() -> (String, Tensor) {
    ("weight".to_string(), random(&[2, 3]))
}

#[test]
fn a_write_that_fails_leaves_the_old_file_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    write_safetensors(&path, &[sample()], None).unwrap();
    let before = fs::read(&path).unwrap();
    let zero = Tensor::zeros(1, DType::F32, &Device::Cpu).unwrap();
    let packed = Tensor::zeros(2, DType::F8E4M3, &Device::Cpu).unwrap();
    for (tensors, reason) in [
        ([("a", &zero), ("a", &zero)], "two tensors have this name"),
        (
            [("a", &zero), ("__metadata__", &zero)],
            "reserves this name",
        ),
        ([("a", &zero), ("b", &packed)], "f8e4m3"),
    ] {
        let tensors = tensors.map(|(name, tensor)| (name.to_owned(), tensor.clone()));
        let error = write_safetensors(&path, &tensors, None).unwrap_err();
        assert!(matches!(error, Error::InvalidInput { .. }), "{error:?}");
        assert_says(&error, &[reason]);
        assert_eq!(names(folder.path()), ["model.safetensors"]);
        assert_eq!(fs::read(&path).unwrap(), before);
    }
}

#[test]
fn a_path_that_cannot_be_written_is_named_and_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), b"").unwrap();
    // A directory of this name is found only by the rename, when all bytes are written.
    fs::create_dir(folder.path().join("taken.safetensors")).unwrap();
    for name in [
        "missing/m.safetensors",
        "file/m.safetensors",
        "taken.safetensors",
    ] {
        let path = folder.path().join(name);
        let error = write_safetensors(&path, &[sample()], None).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error:?}");
        assert_says(&error, &[name]);
        assert_eq!(names(folder.path()), ["file", "taken.safetensors"]);
    }
}

#[test]
#[cfg(unix)]
fn a_written_file_has_the_permissions_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mode = |name: &str| {
        fs::metadata(folder.path().join(name))
            .unwrap()
            .permissions()
            .mode()
    };
    fs::write(folder.path().join("ordinary"), b"").unwrap();
    write_safetensors(folder.path().join("m.safetensors"), &[], None).unwrap();
    assert_eq!(mode("m.safetensors"), mode("ordinary"));
}
