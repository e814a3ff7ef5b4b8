//! A write leaves a complete file with the usual permissions, or the old contents.

use std::fs;

use candle_blocks::{Error, checkpoint::write::write_safetensors};
use candle_core::{DType, Device, Tensor};

use crate::{
    said::assert_says,
    stored::{names, random},
};

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

/// A rename would replace /dev/null by a file.
#[test]
#[cfg(unix)]
fn paths_that_are_not_files_are_not_replaced() {
    use std::os::unix::{fs::FileTypeExt, net::UnixListener};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let _listener = UnixListener::bind(&path).unwrap();
    let error = write_safetensors(&path, &[sample()], None).unwrap_err();
    assert!(matches!(error, Error::Io { .. }), "{error:?}");
    assert_says(&error, &["socket", "not a regular file"]);
    assert!(fs::metadata(&path).unwrap().file_type().is_socket());
    assert_eq!(names(folder.path()), ["socket"]);
}

#[test]
#[cfg(unix)]
fn a_link_stays_and_its_target_is_replaced_with_its_permissions() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("there")).unwrap();
    let file = folder.path().join("there/m.safetensors");
    let link = folder.path().join("link.safetensors");
    fs::write(&file, b"old").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    symlink("there/m.safetensors", &link).unwrap();
    write_safetensors(&link, &[sample()], None).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(
        fs::metadata(&file).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert!(fs::read(&file).unwrap().len() > 24);
    assert_eq!(names(folder.path()), ["link.safetensors", "there"]);
    assert_eq!(names(&folder.path().join("there")), ["m.safetensors"]);
}
