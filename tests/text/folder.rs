//! Changed copies of the committed models that read texts.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::weights::weights;

/// Returns a copy of `weights/text/<name>` after a change.
pub fn changed(name: &str, change: impl FnOnce(&Path)) -> tempfile::TempDir {
    let copy = copied(&format!("text/{name}"));
    change(copy.path());
    copy
}

/// Returns a copy of `weights/<name>`.
pub fn copied(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    copy_folder(&weights(name), copy.path());
    copy
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (path, to) = {
            let entry = entry.unwrap();
            (entry.path(), to.join(entry.file_name()))
        };
        match path.is_dir() {
            true => copy_folder(&path, &to),
            false => drop(fs::copy(path, to).unwrap()),
        }
    }
}

pub fn change_json(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    change(&mut value);
    fs::write(path, value.to_string()).unwrap();
}

/// Sets keys in a file, which may not exist yet; a list replaces the file.
pub fn merge(path: &Path, keys: &Value) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let Some(keys) = keys.as_object() else {
        fs::write(path, keys.to_string()).unwrap();
        return;
    };
    if !path.exists() {
        fs::write(path, json!({}).to_string()).unwrap();
    }
    change_json(path, |value| {
        value.as_object_mut().unwrap().extend(keys.clone())
    });
}
