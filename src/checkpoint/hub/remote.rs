//! A revision on the Hub, held to the commit that it stood for when it was opened.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hf_hub::progress::{DownloadEvent, Progress, ProgressEvent, ProgressHandler};
use hf_hub::repository::{RepoTreeEntry, RepoTypeModel};
use hf_hub::{HFClient, HFClientSync, HFError, HFRepositorySync, split_id};

use super::explain::{Failure, explain, no_file};
use super::{
    CONFIG, Cache, EXTRAS, Handler, Hub, HubEvent, INDEX, MODULES, WEIGHTS, Wanted, is_commit,
    is_of_module, whole,
};
use crate::error::{Error, abbreviated};

/// The files of one commit.
pub(super) struct Remote<'a> {
    hub: &'a Hub,
    cache: &'a Cache,
    repo: HFRepositorySync<RepoTypeModel>,
    endpoint: String,
    commit: String,
    /// Every file of the commit, and its size in bytes.
    listing: BTreeMap<String, u64>,
}

impl<'a> Remote<'a> {
    /// Asks which commit the revision stands for, and what it holds.
    pub(super) fn open(hub: &'a Hub, client: &HFClient, cache: &'a Cache) -> Result<Self, Failure> {
        let endpoint = client.endpoint().to_string();
        let failed = |error: HFError| explain(&error, hub, &endpoint);
        let (owner, name) = split_id(&hub.repo);
        let repo = HFClientSync::from_inner(client.clone())
            .map_err(failed)?
            .model(owner, name);

        let commit = if is_commit(&hub.revision) {
            hub.revision.clone()
        } else {
            let info = repo
                .info()
                .revision(&*hub.revision)
                .send()
                .map_err(failed)?;
            info.sha.filter(|sha| is_commit(sha)).ok_or_else(|| {
                Failure::Refused(format!(
                    "{endpoint} gives no commit hash for the revision; check HF_ENDPOINT or `Hub::endpoint`"
                ))
            })?
        };
        let listing = repo
            .list_tree()
            .revision(&*commit)
            .recursive(true)
            .send()
            .map_err(failed)?
            .into_iter()
            .filter_map(|entry| match entry {
                RepoTreeEntry::File { path, size, .. } => Some((path, size)),
                RepoTreeEntry::Directory { .. } => None,
            })
            .collect();
        Ok(Self {
            hub,
            cache,
            repo,
            endpoint,
            commit,
            listing,
        })
    }

    pub(super) fn commit(&self) -> &str {
        &self.commit
    }

    /// Downloads what is wanted into the cache.
    pub(super) fn fetch(&self, wanted: Wanted<'_>) -> crate::error::Result<PathBuf> {
        wanted.map_or_else(|| self.fetch_checkpoint(), |file| self.fetch_file(file))
    }

    fn fetch_checkpoint(&self) -> crate::error::Result<PathBuf> {
        let holds = |file: &str| self.listing.contains_key(file);
        if !holds(WEIGHTS) && !holds(INDEX) {
            return Err(self.hub.error(self.other_weights()));
        }
        if !holds(CONFIG) {
            return Err(self.hub.error(format!(
                "{}; fetch the weights alone with `Hub::file` and name their family",
                no_file(CONFIG, self.hub)
            )));
        }
        // Weights last: an interrupted download then lacks a file that no checkpoint can do without.
        self.fetch_file(CONFIG)?;
        let has_modules = holds(MODULES);
        let is_extra =
            |name: &&String| EXTRAS.contains(&name.as_str()) || has_modules && is_of_module(name);
        for extra in self.listing.keys().filter(is_extra) {
            self.fetch_file(extra)?;
        }
        if holds(WEIGHTS) {
            self.fetch_file(WEIGHTS)?;
        } else {
            let index = self.fetch_file(INDEX)?;
            let shards = whole::shards(&index)?;
            if let Some(absent) = shards.iter().find(|shard| !holds(shard)) {
                return Err(Error::BadIndex {
                    path: index,
                    reason: format!(
                        "it names the shard {absent}, which the repository does not hold; choose another revision"
                    ),
                });
            }
            for shard in &shards {
                self.fetch_file(shard)?;
            }
        }
        Ok(self.cache.snapshot(&self.commit))
    }

    /// One file, whole, or an error and no file.
    fn fetch_file(&self, file: &str) -> crate::error::Result<PathBuf> {
        let Some(&size) = self.listing.get(file) else {
            let held = self.names(|_| true);
            return Err(self
                .hub
                .error(format!("{}; it holds {held}", no_file(file, self.hub))));
        };
        let expected = self.cache.snapshot(&self.commit).join(file);
        let is_there = || whole::check(&expected, Some(size)).is_ok();
        if is_there() {
            return Ok(expected);
        }
        // The client locks the file too, but then does not look whether it has come meanwhile.
        let lock = self.cache.lock(&self.commit, file);
        let _lock = lock.map_err(|error| self.failed(file, &error.into()))?;
        if is_there() {
            return Ok(expected);
        }
        self.cache.discard_dangling(&expected)?;

        // The client takes a file in the cache as it is, and writes the body of an error page as if it were the file:
        // what is not whole is thrown away and fetched once more.
        let mut damage = String::new();
        for force in [false, true] {
            let path = self
                .fetch_when_free(file, size, force)
                .map_err(|error| self.failed(file, &error))?;
            if path != expected {
                return Err(self.hub.error(format!(
                    "{file} came as {}, expected {}; the Hub served another commit, try again",
                    path.display(),
                    expected.display()
                )));
            }
            match whole::check(&path, Some(size)) {
                Ok(()) => return Ok(path),
                Err(found) => damage = found,
            }
            self.cache.discard(&path)?;
        }
        Err(self.hub.error(format!(
            "{file} as served by {} {damage}; nothing of it was kept; try again",
            self.endpoint
        )))
    }

    fn failed(&self, file: &str, error: &HFError) -> Error {
        let reason = explain(error, self.hub, &self.endpoint).into_reason();
        self.hub.error(format!("{file}: {reason}"))
    }

    /// Fetches a file as soon as no other client does, such as Python's. Ours gives up waiting after ten seconds, in which
    /// few weights arrive; the system frees the lock of a process that dies.
    fn fetch_when_free(&self, file: &str, size: u64, force: bool) -> Result<PathBuf, HFError> {
        loop {
            let fetched = self
                .repo
                .download_file()
                .filename(file)
                .revision(&*self.commit)
                .force_download(force)
                .maybe_progress(self.relay(file, size))
                .send();
            if !matches!(fetched, Err(HFError::CacheLockTimeout { .. })) {
                return fetched;
            }
        }
    }

    /// What there is instead of safetensors weights, and the way from there.
    fn other_weights(&self) -> String {
        let safetensors = self.names(|name| name.ends_with(".safetensors"));
        if !safetensors.is_empty() {
            return format!(
                "the repository has no {WEIGHTS} and no {INDEX}; it holds {safetensors}, which `Hub::file` fetches"
            );
        }
        let formats = [
            ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx", ".gguf",
        ];
        let others = self.names(|name| formats.iter().any(|format| name.ends_with(format)));
        if others.is_empty() {
            return "the repository holds no weights; check its name and revision".into();
        }
        format!(
            "the repository has no {WEIGHTS} and no {INDEX}, only {others}; this crate reads safetensors: convert the \
             weights (https://huggingface.co/spaces/safetensors/convert, or `save_pretrained` of transformers), or \
             choose a revision that holds them with `Hub::revision`"
        )
    }

    /// The first few listed names that `keep` accepts.
    fn names(&self, keep: impl Fn(&str) -> bool) -> String {
        let kept = self.listing.keys().filter(|name| keep(name));
        abbreviated(&kept.cloned().collect::<Vec<_>>())
    }

    fn relay(&self, file: &str, total: u64) -> Option<Progress> {
        let handler = self.hub.progress.clone()?;
        Some(Progress::new(Relay {
            handler,
            file: file.to_string(),
            total,
        }))
    }
}

/// Hands the client's events on as ours.
struct Relay {
    handler: Handler,
    file: String,
    total: u64,
}

impl ProgressHandler for Relay {
    fn on_progress(&self, event: &ProgressEvent) {
        let ProgressEvent::Download(DownloadEvent::Progress { files }) = event else {
            return;
        };
        for file in files {
            (self.handler)(&HubEvent::Progress {
                file: &self.file,
                bytes: file.bytes_completed,
                total: self.total,
            });
        }
    }
}
