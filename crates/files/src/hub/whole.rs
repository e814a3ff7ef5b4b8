//! Checks from a file alone whether it is complete, and lists the shards that an index names.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use super::{PICKLE_INDEX, stays_inside};
use crate::tensors as files;
use crate::tensors::Index;
use candle_blocks_base::{Error, Result};

/// Checks a file's size against the Hub's listing, if known, and against its own header.
///
/// The error completes a sentence that begins with the file's name.
pub(super) fn check(path: &Path, listed: Option<u64>) -> std::result::Result<(), String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    let found = std::fs::metadata(path).map_err(unreadable)?.len();
    if let Some(listed) = listed
        && listed != found
    {
        return Err(format!("has {found} bytes, the Hub lists {listed}"));
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => files::check(path).map_err(|error| match error {
            Error::NotSafetensors { reason, .. } => format!("is incomplete: {reason}"),
            other => format!("is incomplete: {other}"),
        })?,
        Some("bin") if is_weights(path) => {
            files::check_archive(path).map_err(|error| format!("is incomplete: {error}"))?;
        }
        Some("json") => {
            let text = std::fs::read(path).map_err(unreadable)?;
            if !closes(&text) {
                return Err("is incomplete JSON: it breaks off before its last bracket".into());
            }
        }
        _ => {}
    }
    Ok(())
}

/// Returns whether a file's name is that of a PyTorch model or adapter. Trainers write other PyTorch files too.
fn is_weights(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("pytorch_model") || name.starts_with("adapter_model")
}

/// Returns the paths of an index's shards in the repository, each once; none if the weights are not an index. `name` is its
/// own path in the repository.
///
/// # Errors
/// The errors of [`Index::read`]; also if a name is not that of a file inside the repository, in the index's format.
pub(super) fn shards(index: &Path, name: &str) -> Result<BTreeSet<String>> {
    if !name.ends_with(".json") {
        return Ok(BTreeSet::new());
    }
    let read = Index::read(index.into())?;
    let (format, extension) = match index.ends_with(PICKLE_INDEX) {
        true => ("a PyTorch", ".bin"),
        false => ("a safetensors", ".safetensors"),
    };
    let is_fit = |shard: &str| stays_inside(shard) && shard.ends_with(extension);
    if let Some(shard) = read.names().into_iter().find(|shard| !is_fit(shard)) {
        return Err(Error::BadIndex {
            path: index.into(),
            reason: format!("its shard {shard:?} is not {format} file; convert the checkpoint"),
        });
    }
    let folder = name.rsplit_once('/').map(|(folder, _)| folder);
    let beside = |shard: &str| match folder {
        Some(folder) => format!("{folder}/{shard}"),
        None => shard.to_string(),
    };
    Ok(read.names().into_iter().map(beside).collect())
}

/// Returns whether every bracket in a JSON text is closed at its end, which is false for every proper prefix of an object or
/// array. A parser would check more, but would refuse the `NaN` and `Infinity` that Python writes.
fn closes(text: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_i64, false, false);
    for &byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => depth += 1,
            b'}' | b']' if !in_string => depth -= 1,
            _ => {}
        }
    }
    depth == 0 && !in_string && !text.trim_ascii().is_empty()
}

#[cfg(test)]
mod tests {
    use super::super::INDEX;
    use super::*;

    fn written(
        name: &str,
        bytes: &[u8],
    ) -> anyhow::Result<(tempfile::TempDir, std::path::PathBuf)> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join(name);
        std::fs::write(&path, bytes)?;
        Ok((directory, path))
    }

    #[test]
    fn every_shorter_json_object_is_refused() -> anyhow::Result<()> {
        let text = br#"{"model_type": "\"}]", "layers": [1, {"a": Infinity}]}"#;
        for length in 0..text.len() {
            let (_directory, path) = written("config.json", &text[..length])?;
            assert!(check(&path, None).is_err(), "{length}");
        }
        let (_directory, path) = written("config.json", text)?;
        assert_eq!(check(&path, None), Ok(()));
        Ok(())
    }

    #[test]
    fn another_size_than_the_listed_one_is_refused() -> anyhow::Result<()> {
        let (_directory, path) = written("vocab.txt", b"abc")?;
        assert_eq!(check(&path, Some(3)), Ok(()));
        let damage = check(&path, Some(4)).err();
        assert_eq!(damage.as_deref(), Some("has 3 bytes, the Hub lists 4"));
        Ok(())
    }

    #[test]
    fn an_index_without_usable_shards_is_refused() -> anyhow::Result<()> {
        for text in [
            r#"{"weight_map": {"a": "../1.safetensors"}}"#,
            r#"{"weight_map": {"a": "/1.safetensors"}}"#,
            r#"{"weight_map": {"a": "pytorch_model-1.bin"}}"#,
            r#"{"weight_map": {}}"#,
        ] {
            let (_directory, path) = written(INDEX, text.as_bytes())?;
            let error = shards(&path, INDEX).err();
            assert!(
                matches!(error, Some(Error::BadIndex { .. })),
                "{text}: {error:?}"
            );
        }
        for text in ["{}", "[]", r#"{"weight_map": {"a": 1}}"#] {
            let (_directory, path) = written(INDEX, text.as_bytes())?;
            let error = shards(&path, INDEX).err();
            assert!(
                matches!(error, Some(Error::BadIndex { .. })),
                "{text}: {error:?}"
            );
        }
        Ok(())
    }
}
