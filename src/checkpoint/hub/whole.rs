//! Whether a file is all there, told from the file itself; and which shards an index names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::Deserialize;

use super::stays_inside;
use crate::Error;

/// The longest header that the safetensors format allows.
const MAX_HEADER: u64 = 100_000_000;

/// Checks a file against the size the Hub lists, if known, and against what it says of itself.
///
/// The error is what is wrong, to follow the file's name in a sentence.
pub(super) fn check(path: &Path, listed: Option<u64>) -> Result<(), String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    let found = std::fs::metadata(path).map_err(unreadable)?.len();
    if let Some(listed) = listed
        && listed != found
    {
        return Err(format!("has {found} bytes, the Hub lists {listed}"));
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => {
            let implied = implied_length(path)?;
            if implied != found {
                return Err(format!("has {found} bytes, its header implies {implied}"));
            }
        }
        Some("json") => {
            let text = std::fs::read(path).map_err(unreadable)?;
            if !closes(&text) {
                return Err("is not whole JSON: it breaks off before its last bracket".into());
            }
        }
        _ => {}
    }
    Ok(())
}

/// The file names in an index's `weight_map`, each once.
///
/// # Errors
///
/// [`Error::MalformedJson`] if it is no index, [`Error::BadIndex`] if a name leads out of the repository.
pub(super) fn shards(index: &Path) -> crate::Result<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let text = std::fs::read(index).map_err(|error| Error::io(index, "read", error))?;
    let index_of: Index = serde_json::from_slice(&text).map_err(|error| Error::MalformedJson {
        path: index.into(),
        reason: error.to_string(),
    })?;
    let bad = |reason: String| Error::BadIndex {
        path: index.into(),
        reason,
    };
    for (tensor, shard) in &index_of.weight_map {
        if !stays_inside(shard) {
            return Err(bad(format!(
                "the shard {shard:?} of tensor {tensor} lies outside the checkpoint; do not use this checkpoint"
            )));
        }
        if !shard.ends_with(".safetensors") {
            return Err(bad(format!(
                "the shard {shard:?} of tensor {tensor} is not a safetensors file; convert the checkpoint"
            )));
        }
    }
    if index_of.weight_map.is_empty() {
        return Err(bad(
            "weight_map names no shard; export the checkpoint again".into(),
        ));
    }
    Ok(index_of.weight_map.into_values().collect())
}

/// `8 + header + data`, where the header's largest end offset is the length of the data
/// (<https://github.com/huggingface/safetensors#format>).
fn implied_length(path: &Path) -> Result<u64, String> {
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        data_offsets: Option<(u64, u64)>,
    }
    let short = |error: io::Error| format!("breaks off in its header: {error}");
    let mut file = File::open(path).map_err(|error| format!("cannot be read: {error}"))?;
    let mut prefix = [0; 8];
    file.read_exact(&mut prefix).map_err(short)?;
    let header = u64::from_le_bytes(prefix);
    if header > MAX_HEADER {
        return Err(format!("is not safetensors: its header has {header} bytes"));
    }
    let mut text = Vec::new();
    file.take(header).read_to_end(&mut text).map_err(short)?;
    let entries: BTreeMap<String, Entry> = serde_json::from_slice(&text)
        .map_err(|error| format!("is not safetensors, or breaks off in its header: {error}"))?;
    let data = entries
        .values()
        .filter_map(|entry| entry.data_offsets)
        .map(|(_, end)| end)
        .max();
    data.unwrap_or(0)
        .checked_add(8 + header)
        .ok_or_else(|| "is not safetensors: an offset is out of range".into())
}

/// Whether every bracket of a JSON text is closed at its end, as in no proper prefix of an object or array. A parser would
/// say more, but would also refuse the `NaN` and `Infinity` that Python writes.
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
    fn every_shorter_and_longer_safetensors_file_is_refused() -> anyhow::Result<()> {
        let view =
            safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![3], &[7; 12])?;
        let metadata = std::collections::HashMap::from([("format".to_string(), "pt".to_string())]);
        let mut bytes = safetensors::serialize([("w", view)], Some(metadata))?;
        for length in 0..bytes.len() {
            let (_directory, path) = written("a.safetensors", &bytes[..length])?;
            assert!(
                check(&path, None).is_err(),
                "{length} of {} bytes",
                bytes.len()
            );
        }
        let (_directory, path) = written("a.safetensors", &bytes)?;
        assert_eq!(check(&path, None), Ok(()));
        bytes.push(0);
        let (_directory, path) = written("a.safetensors", &bytes)?;
        assert!(check(&path, None).is_err());
        Ok(())
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
    fn an_index_names_each_shard_once() -> anyhow::Result<()> {
        let (_directory, path) = written(
            INDEX,
            br#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors"}}"#,
        )?;
        let shards = shards(&path)?;
        assert_eq!(
            shards.into_iter().collect::<Vec<_>>(),
            ["1.safetensors", "2.safetensors"]
        );
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
            let error = shards(&path).err();
            assert!(
                matches!(error, Some(Error::BadIndex { .. })),
                "{text}: {error:?}"
            );
        }
        for text in ["{}", "[]", r#"{"weight_map": {"a": 1}}"#] {
            let (_directory, path) = written(INDEX, text.as_bytes())?;
            let error = shards(&path).err();
            assert!(
                matches!(error, Some(Error::MalformedJson { .. })),
                "{text}: {error:?}"
            );
        }
        Ok(())
    }
}
