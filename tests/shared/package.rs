//! The folder whose files are tested.

use std::{env, path::PathBuf};

/// A path in the repository, or in the unpacked package that the environment names: the folder with `weights/`, above the package
/// whose tests run.
pub fn package(local: &str) -> PathBuf {
    let named = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let package = named.unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let root = package
        .ancestors()
        .find(|folder| folder.join("weights").is_dir());
    root.unwrap_or(&package).join(local)
}
