//! A revision on the Hub, fixed to its commit when it was opened.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use super::explain::{Failure, explain_cache, no_file};
use super::http::Http;
use super::{
    CHECKPOINTS, CONFIG, Cache, Hub, HubEvent, INDEX, LETTERS, MODULES, PICKLE, PREPROCESSOR,
    WEIGHTS, Wanted, is_commit, is_extra, is_of_module, model_folder, preferred, stays_inside,
    whole,
};
use crate::python::native;
use crate::tensors as files;
use candle_blocks_base::{Error, abbreviated};

/// The files of one commit.
pub(super) struct Remote<'a> {
    hub: &'a Hub,
    cache: &'a Cache,
    http: Http<'a>,
    commit: String,
    /// Every file in the commit, and its size in bytes.
    listing: BTreeMap<String, u64>,
}

impl<'a> Remote<'a> {
    /// Requests the revision's commit and its list of files.
    pub(super) fn open(hub: &'a Hub, cache: &'a Cache) -> Result<Self, Failure> {
        let http = Http::new(hub)?;
        let commit = match is_commit(&hub.revision) {
            true => hub.revision.clone(),
            false => http.commit(&hub.revision)?,
        };
        let listing = http.files(&commit)?.into_iter().collect();
        Ok(Self {
            hub,
            cache,
            http,
            commit,
            listing,
        })
    }

    pub(super) fn commit(&self) -> &str {
        &self.commit
    }

    /// Downloads the requested content into the cache.
    pub(super) fn fetch(&self, wanted: Wanted<'_>) -> candle_blocks_base::Result<PathBuf> {
        wanted.map_or_else(|| self.fetch_checkpoint(), |file| self.fetch_file(file))
    }

    fn fetch_checkpoint(&self) -> candle_blocks_base::Result<PathBuf> {
        let holds = |file: &str| self.listing.contains_key(file);
        let folder = match !holds(CONFIG) && holds(MODULES) {
            true => model_folder(&self.fetch_file(MODULES)?)?,
            false => String::new(),
        };
        let config = format!("{folder}{CONFIG}");
        let may_name = holds(CONFIG)
            && self
                .listing
                .keys()
                .any(|name| name.ends_with(".safetensors"));
        let named = match may_name {
            true => files::weights_of_config(&self.fetch_file(CONFIG)?)?,
            false => None,
        };
        let mut usual = { CHECKPOINTS.iter() }.map(|name| format!("{folder}{name}"));
        let Some(weights) = named.or_else(|| usual.find(|name| holds(name))) else {
            return Err(self.hub.error(self.other_weights()));
        };
        // A static embedding has none.
        if holds(&config) {
            self.fetch_file(&config)?;
        } else if folder.is_empty() {
            return Err(self.hub.error(format!(
                "{}; fetch the weights alone with `Hub::file` and name their family",
                no_file(CONFIG, self.hub)
            )));
        }
        // Weights last: an interrupted download then lacks a file that every checkpoint needs.
        let has_modules = holds(MODULES);
        let is_wanted = |name: &&String| {
            let is_beside =
                |local: &str| is_extra(local) || local == LETTERS && holds(PREPROCESSOR);
            let is_one = is_beside(name)
                || name.strip_prefix(&folder).is_some_and(is_beside)
                || has_modules && is_of_module(name);
            is_one && stays_inside(name) && !preferred(name).is_some_and(|other| holds(&other))
        };
        for extra in self.listing.keys().filter(is_wanted) {
            self.fetch_file(extra)?;
        }
        let path = self.fetch_file(&weights)?;
        let shards = whole::shards(&path, &weights)?;
        if let Some(absent) = shards.iter().find(|shard| !holds(shard)) {
            return Err(Error::BadIndex {
                path,
                reason: format!(
                    "it names the shard {absent}, which the repository does not contain; choose another revision"
                ),
            });
        }
        for shard in &shards {
            self.fetch_file(shard)?;
        }
        self.check_all()
    }

    /// Returns the snapshot, if all its files are complete. A server may give two files the same `ETag`, so that the later
    /// one replaces the earlier one in the cache.
    fn check_all(&self) -> candle_blocks_base::Result<PathBuf> {
        let snapshot = self.cache.snapshot(&self.commit);
        for (file, &size) in &self.listing {
            let path = snapshot.join(file);
            if !stays_inside(file) || !path.exists() {
                continue;
            }
            if let Err(damage) = whole::check(&path, Some(size)) {
                self.cache.discard(&path)?;
                return Err(self.hub.error(format!(
                    "{file} {damage} since another file arrived, because {} gives both the same \
                     ETag; check HF_ENDPOINT or `Hub::endpoint`",
                    self.http.endpoint()
                )));
            }
        }
        Ok(snapshot)
    }

    /// Returns one complete file, or an error and no file.
    fn fetch_file(&self, file: &str) -> candle_blocks_base::Result<PathBuf> {
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
        let failed =
            |failure: Failure| self.hub.error(format!("{file}: {}", failure.into_reason()));
        let unusable = |error: std::io::Error| failed(explain_cache(&error));
        let etag = self.http.etag(&self.commit, file).map_err(failed)?;
        let _lock = self.cache.lock(&etag).map_err(unusable)?;
        if is_there() {
            return Ok(expected);
        }
        // A cached blob may be damaged: incomplete files are deleted and fetched once more.
        let mut damage = String::new();
        for _ in 0..2 {
            if !self.cache.blob(&etag).exists() {
                self.load(file, size, &etag).map_err(failed)?;
            }
            self.cache
                .link(&self.commit, file, &etag)
                .map_err(unusable)?;
            match whole::check(&expected, Some(size)) {
                Ok(()) => return Ok(expected),
                Err(found) => damage = found,
            }
            self.cache.discard_blob(&expected, &etag)?;
        }
        Err(self.hub.error(format!(
            "{file} as served by {} {damage}; nothing was kept; try again",
            self.http.endpoint()
        )))
    }

    /// Downloads a file's content into the cache.
    fn load(&self, file: &str, size: u64, etag: &str) -> Result<(), Failure> {
        self.cache.store(etag, explain_cache, |mut content| {
            let mut bytes = 0;
            self.http.load(&self.commit, file, size, |piece| {
                content.write_all(piece)?;
                bytes += piece.len() as u64;
                self.hub.report(&HubEvent::Progress {
                    file,
                    bytes: bytes.min(size),
                    total: size,
                });
                Ok(())
            })
        })
    }

    /// Returns the weights in unsupported formats that the repository has, and how to convert them.
    fn other_weights(&self) -> String {
        let native = self.names(native::is_named_so);
        if !native.is_empty() {
            return native::reason(&native);
        }
        for readable in [".safetensors", ".gguf"] {
            let held = self.names(|name| name.ends_with(readable));
            if !held.is_empty() {
                return format!(
                    "the repository has no {WEIGHTS} and no {INDEX}; it contains {held}, which \
                     `Hub::file` fetches"
                );
            }
        }
        let formats = [".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx"];
        let others = self.names(|name| formats.iter().any(|format| name.ends_with(format)));
        if others.is_empty() {
            return "the repository contains no weights; check its name and revision".into();
        }
        format!(
            "the repository has no {WEIGHTS}, no {PICKLE} and no index for one, only {others}; \
             convert the weights (https://huggingface.co/spaces/safetensors/convert, or \
             `save_pretrained` in transformers), or select a revision that has them with \
             `Hub::revision`"
        )
    }

    /// Returns the first few listed names that `keep` accepts.
    fn names(&self, keep: impl Fn(&str) -> bool) -> String {
        let kept = self.listing.keys().filter(|name| keep(name));
        abbreviated(&kept.cloned().collect::<Vec<_>>())
    }
}
