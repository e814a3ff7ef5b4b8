//! Files made byte by byte, for tests with hostile input.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A directory that goes away with the test.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn root(&self) -> &Path {
        self.0.path()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        // ext4 waits for the disk where a file is cut to be written again; not where it is new.
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes).unwrap();
        path
    }
}

/// Name, type, shape, offsets.
pub type Entry<'a> = (&'a str, &'a str, &'a [usize], [usize; 2]);

pub fn header(entries: &[Entry]) -> String {
    let entries: Vec<String> = entries
        .iter()
        .map(|(name, dtype, shape, offsets)| {
            format!(
                r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":{offsets:?}}}"#
            )
        })
        .collect();
    format!("{{{}}}", entries.join(","))
}

/// Length, header, data: a file as it lies on disk.
pub fn framed(header: &[u8], data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header, data].concat()
}

/// A small file with a matrix, a vector, a scalar and an empty tensor.
pub fn valid() -> Vec<u8> {
    let entries = header(&[
        ("down.weight", "F32", &[2, 3], [0, 24]),
        ("scale", "F64", &[], [24, 32]),
        ("up.bias", "BF16", &[5], [32, 42]),
        ("none", "I64", &[0, 7], [42, 42]),
        ("mask", "BOOL", &[2], [42, 44]),
    ]);
    let entries = entries.replacen('{', r#"{"__metadata__":{"format":"pt"},"#, 1);
    let data: Vec<u8> = (0..44).collect();
    framed(entries.as_bytes(), &data)
}
