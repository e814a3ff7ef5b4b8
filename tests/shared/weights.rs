//! The committed weights; the published package leaves some out.

#[path = "package.rs"]
mod package;

use std::{io::Write, path::PathBuf};

/// A path under `weights/`.
pub fn weights(local: &str) -> PathBuf {
    package::package("weights").join(local)
}

/// Returns whether a path under `weights/` can be used. If the published package leaves it out, returns false and prints a
/// message. In a clone nothing may be missing, and using a missing file fails.
pub fn is_present(local: &str) -> bool {
    // Cargo writes this file when it packs a crate.
    let is_package = weights("../Cargo.toml.orig").exists();
    let is_present = weights(local).exists() || !is_package;
    if !is_present {
        left_out(&format!(
            "weights/{local} is not in the published package; see weights/README.md"
        ));
    }
    is_present
}

/// Says what a test did not do; past the harness, which shows a passed test's output to nobody.
pub fn left_out(what: &str) {
    let line = format!("LEFT OUT: {what}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
