//! Names of files and directories that Windows keeps for devices, or changes.

use std::io;
use std::path::Path;

/// Names of devices in every directory, also with an extension.
const DEVICES: [&str; 6] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"];
/// Devices with a digit after the name.
const NUMBERED: [&str; 2] = ["COM", "LPT"];

/// Checks the name of a file or directory that is about to be written.
///
/// # Errors
/// On Windows, if the system would write to a device, or under another name.
pub fn check(path: &Path) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    match reason(&name).filter(|_| cfg!(windows)) {
        None => Ok(()),
        Some(reason) => Err(io::Error::new(io::ErrorKind::InvalidFilename, reason)),
    }
}

/// Returns the reason why Windows has no file with this name.
fn reason(name: &str) -> Option<String> {
    if name.ends_with(['.', ' ']) {
        return Some("Windows drops a point or space at the end of a name; leave it out".into());
    }
    if name.contains(':') {
        return Some(
            "Windows writes to a stream of the file before the colon; leave it out".into(),
        );
    }
    let stem = name.split('.').next().unwrap_or_default();
    let stem = stem.trim_end().to_uppercase();
    let is_numbered = |device: &&str| {
        let number = stem.strip_prefix(*device).unwrap_or_default();
        matches!(
            number,
            "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9" | "¹" | "²" | "³"
        )
    };
    let is_device = DEVICES.contains(&stem.as_str()) || NUMBERED.iter().any(is_numbered);
    is_device.then(|| format!("Windows keeps the name {stem} for a device; give another name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    // The list is Microsoft's: "Naming Files, Paths, and Namespaces".
    #[test]
    fn names_of_devices_and_names_that_windows_changes_are_seen() {
        for bad in [
            "NUL",
            "nul",
            "con",
            "aux.safetensors",
            "Com1",
            "lpt9.tar.gz",
            "COM¹",
            "CONOUT$",
            "nul .txt",
            "model.",
            "model ",
            "model..",
            "a:b",
        ] {
            assert!(reason(bad).is_some(), "{bad:?}");
        }
        for good in [
            "model.safetensors",
            "null",
            "console",
            "com",
            "com10",
            "lpt",
            "auxiliary.gguf",
            "a.nul",
            ".con",
            "",
        ] {
            assert_eq!(reason(good), None, "{good:?}");
        }
    }

    #[test]
    fn only_windows_refuses_them() {
        assert_eq!(
            check(Path::new("folder/nul.safetensors")).is_err(),
            cfg!(windows)
        );
        assert!(check(Path::new("nul/model.safetensors")).is_ok());
    }
}
