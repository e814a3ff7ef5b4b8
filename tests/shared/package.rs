//! The package whose files are tested.

use std::{env, path::PathBuf};

/// A path in the package that the environment names: cargo names this one, and `.ci/run` an unpacked one.
pub fn package(local: &str) -> PathBuf {
    let named = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    named
        .unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into())
        .join(local)
}
