//! Standard input in place of a file, by the name `-`.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result};
use candle_blocks::checkpoint::write::unfinished::TemporaryDirectory;

/// The name for standard input, which a temporary file has, too.
const STANDARD_INPUT: &str = "standard input";

/// Returns whether a path means standard input.
pub fn is_standard(path: &Path) -> bool {
    path == Path::new("-")
}

/// Returns a file's name in messages.
pub fn name(path: &Path) -> String {
    match is_standard(path) {
        true => STANDARD_INPUT.to_string(),
        false => path.display().to_string(),
    }
}

/// Reads a whole file, or standard input.
pub fn bytes(path: &Path) -> Result<Vec<u8>> {
    let read = match is_standard(path) {
        true => {
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut io::stdin().lock(), &mut bytes).map(|_| bytes)
        }
        false => fs::read(path),
    };
    read.with_context(|| format!("{}: cannot read", name(path)))
}

/// A file to read. Standard input is copied to a temporary file, since the library opens files by their paths.
pub struct InputFile {
    path: PathBuf,
    _folder: Option<TemporaryDirectory>,
}

impl InputFile {
    /// Returns the file at a path, or a copy of standard input.
    pub fn of(path: &Path) -> Result<Self> {
        let (mut path, mut folder) = (path.to_path_buf(), None);
        if is_standard(&path) {
            let copy = || -> io::Result<_> {
                let folder = TemporaryDirectory::create(&std::env::temp_dir(), ".tmp")?;
                let path = folder.path().join(STANDARD_INPUT);
                let mut options = fs::OpenOptions::new();
                // The folder is open to all.
                #[cfg(unix)]
                std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
                let mut file = options.write(true).create_new(true).open(&path)?;
                io::copy(&mut io::stdin().lock(), &mut file)?;
                Ok((path, folder))
            };
            let copied = copy().with_context(|| {
                let place = std::env::temp_dir();
                format!("{STANDARD_INPUT}: cannot be copied to {}", place.display())
            })?;
            (path, folder) = (copied.0, Some(copied.1));
        }
        Ok(Self {
            path,
            _folder: folder,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}
