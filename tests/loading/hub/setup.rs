//! The setup for these tests: a server with a small checkpoint, an empty cache, and functions that inspect the disk.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use candle_blocks::Error;
use candle_blocks::checkpoint::hub::{Hub, Network};

use super::server::{Files, Repo, Server};

pub const REPO: &str = "owner/tiny";
pub const WEIGHTS: &str = "model.safetensors";
pub const PICKLE: &str = "pytorch_model.bin";
pub const INDEX: &str = "model.safetensors.index.json";
pub const SHARDS: [&str; 2] = [
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
];

/// A server, and a cache that nothing else writes to.
pub struct Setup {
    pub server: Server,
    pub cache: tempfile::TempDir,
}

impl Setup {
    /// One commit, on `main`.
    pub fn new(files: Files) -> Result<Self> {
        Self::with(Repo {
            id: REPO.into(),
            revisions: BTreeMap::from([("main".into(), commit('a'))]),
            commits: BTreeMap::from([(commit('a'), files)]),
            ..Repo::default()
        })
    }

    pub fn with(repo: Repo) -> Result<Self> {
        Ok(Self {
            server: Server::start(repo)?,
            cache: tempfile::tempdir()?,
        })
    }

    /// Returns a client with all options set, so that environment variables do not matter.
    pub fn hub(&self) -> Hub {
        self.hub_of(REPO)
    }

    pub fn hub_of(&self, repo: &str) -> Hub {
        Hub::new(repo)
            .endpoint(self.server.url())
            .cache_dir(self.cache.path())
            .token("hf_none")
            .network(Network::Online)
            .retry(1, Duration::from_millis(1))
    }

    pub fn offline(&self) -> Hub {
        self.hub().network(Network::Offline)
    }

    /// Asserts that no part of a file can be found by the next reader of the cache.
    pub fn assert_absent(&self, file: &str, body: &[u8]) -> Result<()> {
        for path in files_below(self.cache.path())? {
            let name = path.file_name().context("a file has a name")?;
            assert_ne!(name, file, "{} is there", path.display());
            let incomplete = path
                .extension()
                .is_some_and(|extension| extension == "incomplete");
            if !incomplete && !path.starts_with(self.cache.path().join(".locks")) {
                let found = std::fs::read(&path)?;
                let part = !found.is_empty() && found.len() > 64 && body.starts_with(&found);
                assert!(!part, "{} holds a part of {file}", path.display());
            }
        }
        assert!(refusal(self.offline().download())?.contains("offline"));
        Ok(())
    }
}

pub fn commit(letter: char) -> String {
    letter.to_string().repeat(40)
}

/// Returns a real safetensors file with one tensor of `n` bytes, all of them `fill`.
pub fn safetensors(name: &str, fill: u8, n: usize) -> Result<Vec<u8>> {
    let data = vec![fill; n];
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::U8, vec![n], &data)?;
    Ok(safetensors::serialize([(name, view)], None)?)
}

pub fn single() -> Result<Files> {
    Ok(Files::from([
        ("config.json".into(), br#"{"model_type": "bert"}"#.to_vec()),
        ("tokenizer.json".into(), br#"{"version": "1.0"}"#.to_vec()),
        ("README.md".into(), b"# Tiny".to_vec()),
        ("pytorch_model.bin".into(), vec![1; 64]),
        ("onnx/model.onnx".into(), vec![2; 64]),
        ("1_Pooling/config.json".into(), b"{}".to_vec()),
        (WEIGHTS.into(), safetensors("w", 3, 100_000)?),
    ]))
}

pub fn sharded(names: [&str; 2]) -> Result<Files> {
    let index = serde_json::json!({"metadata": {}, "weight_map": {"a": names[0], "b": names[1], "c": names[0]}});
    Ok(Files::from([
        ("config.json".into(), br#"{"model_type": "gpt2"}"#.to_vec()),
        (INDEX.into(), index.to_string().into_bytes()),
        (SHARDS[0].into(), safetensors("a", 4, 5_000)?),
        (SHARDS[1].into(), safetensors("b", 5, 7_000)?),
    ]))
}

/// The reason in an [`Error::Hub`].
pub fn refusal<T: std::fmt::Debug>(result: candle_blocks::Result<T>) -> Result<String> {
    match result {
        Err(Error::Hub { repo, reason }) => {
            assert!(repo.contains('@'), "{repo}");
            Ok(reason)
        }
        other => bail!("expected Error::Hub, found {other:?}"),
    }
}

pub fn files_below(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(files_below(&path)?);
        } else {
            files.push(path);
        }
    }
    Ok(files)
}

/// The names in a snapshot directory, with their contents.
pub fn contents(snapshot: &Path) -> Result<Files> {
    files_below(snapshot)?
        .into_iter()
        .map(|path| {
            let name = path.strip_prefix(snapshot)?.to_string_lossy().into_owned();
            Ok((name.replace('\\', "/"), std::fs::read(&path)?))
        })
        .collect()
}

pub fn only(files: &Files, names: &[&str]) -> Files {
    let wanted = |(name, _): &(&String, &Vec<u8>)| names.contains(&name.as_str());
    files
        .iter()
        .filter(wanted)
        .map(|(name, body)| (name.clone(), body.clone()))
        .collect()
}
