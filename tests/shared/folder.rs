//! A new folder for a test.

use tempfile::TempDir;

/// Creates an empty folder, which is removed when dropped. In WASI the standard library knows no folder for temporary files:
/// `TMPDIR` names one there.
pub fn folder() -> TempDir {
    let named = std::env::var_os("TMPDIR").filter(|_| cfg!(target_os = "wasi"));
    named
        .map_or_else(tempfile::tempdir, tempfile::tempdir_in)
        .unwrap()
}
