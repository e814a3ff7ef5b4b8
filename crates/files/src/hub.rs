//! Downloads checkpoints from the Hugging Face Hub: only the files that a model needs, into the cache that Python's
//! `huggingface_hub` uses too.
//!
//! [`Hub::download`] resolves the revision to a commit, lists its files, fetches `config.json` and the weights, and returns
//! the snapshot directory. The weights are `model.safetensors` or every shard of `model.safetensors.index.json`. Only if a
//! repository has neither, they are `pytorch_model.bin` or the shards of `pytorch_model.bin.index.json`, as in transformers.
//! A file or index that `config.json` names as `transformers_weights` comes before all of these.
//! It also fetches existing files for the tokenizer, chat templates, generation, quantization, adapters and
//! sentence-transformers. The cached revision moves to the new commit only when everything has arrived, so a failed download
//! leaves the last complete snapshot in place.
//!
//! **Only complete files are used.** Every file must have the size that the Hub lists. A safetensors file must also have the
//! length that its own header implies, and a JSON file must parse. A file that fails is removed from the cache and fetched
//! once more. The last two checks need no network and apply to cached files too.
//!
//! **A server cannot choose paths on this machine.** The names under which a response wants its content stored (`ETag`,
//! `X-Repo-Commit`, the listing, the index) must be hashes or paths inside the repository; anything else is refused. A
//! silent server is an error: `HF_HUB_ETAG_TIMEOUT` and `HF_HUB_DOWNLOAD_TIMEOUT`, 10 seconds each by default, limit the
//! wait for an answer and for each piece of a file.
//!
//! **Without a network** the cached snapshot is used, as in `huggingface_hub`: if the Hub cannot be reached or answers with
//! a server error, and the cache contains the complete revision, that one is returned and the progress handler receives
//! [`HubEvent::CacheUsed`]. Unlike in Python, a refusal (401, 403, 404) is always an error, and so is a connection that
//! breaks after the listing. A revision that is a full commit hash cannot change, so it is taken from the cache without a
//! request.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::bytes::limited::read_limited;
use crate::python_json;
use crate::tensors::{INDEX, PICKLE, PICKLE_INDEX, SINGLE as WEIGHTS};
use candle_blocks_base::setters;
use candle_blocks_base::{Error, Result};

mod cache;
mod environment;
mod explain;
mod http;
mod limits;
mod names;
mod remote;
#[doc(hidden)]
pub mod whole;

use cache::Cache;
use environment::{is_true, of_process};
use explain::Failure;
use names::{is_commit, is_repo_id, stays_inside};
use remote::Remote;

#[doc(hidden)]
pub const CONFIG: &str = "config.json";
/// Files beside the weights that change results; fetched if the repository has them.
const EXTRAS: [&str; 18] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "processor_config.json",
    PREPROCESSOR,
    "generation_config.json",
    MODULES,
    "router_config.json",
    "config_sentence_transformers.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    "adapter_model.bin",
];

/// A checkpoint's weights, in one file or with an index of shards. The first that a repository has are taken, unless
/// `config.json` names others.
#[doc(hidden)]
pub const CHECKPOINTS: [&str; 4] = [WEIGHTS, INDEX, PICKLE, PICKLE_INDEX];

/// Returns the safetensors file that takes precedence over a PyTorch file in the same folder.
fn preferred(name: &str) -> Option<String> {
    let pairs = [
        (PICKLE, WEIGHTS),
        ("adapter_model.bin", "adapter_model.safetensors"),
    ];
    pairs.iter().find_map(|(of_torch, safetensors)| {
        let folder = name.strip_suffix(of_torch)?;
        (folder.is_empty() || folder.ends_with('/')).then(|| format!("{folder}{safetensors}"))
    })
}

/// Returns whether a file's name is in [`EXTRAS`], or matches one of its patterns.
fn is_extra(name: &str) -> bool {
    let is_of_sentences = name.starts_with("sentence_") && name.ends_with("_config.json");
    let is_template = name.starts_with("additional_chat_templates/") && name.ends_with(".jinja");
    EXTRAS.contains(&name) || (is_of_sentences && !name.contains('/')) || is_template
}

/// How a model reads images or sound.
const PREPROCESSOR: &str = "preprocessor_config.json";
/// The letters of a model that reads sound. Other tokenizers have it in `tokenizer.json`.
const LETTERS: &str = "vocab.json";

/// Lists the modules of a sentence-transformers model, each in a folder of its own.
const MODULES: &str = "modules.json";

/// The size limit; the file has some hundred bytes.
const MAX_MODULES: u64 = 1_000_000;

/// Returns the folder of the first module, which has the model: empty, or with a slash at its end.
///
/// # Errors
/// If the file is malformed, or names a folder outside the repository.
fn model_folder(modules: &Path) -> Result<String> {
    #[derive(serde::Deserialize)]
    struct Module {
        path: String,
    }
    let malformed = |reason| Error::MalformedJson {
        path: modules.to_path_buf(),
        reason,
    };
    let text = read_limited(modules, MAX_MODULES, MODULES)?;
    let modules: Vec<Module> = python_json::parsed(&text).map_err(malformed)?;
    match modules.into_iter().next() {
        Some(Module { path }) if path.is_empty() => Ok(path),
        Some(Module { path }) if stays_inside(&path) => Ok(format!("{path}/")),
        Some(Module { path }) => Err(malformed(format!(
            "the first module is at {path:?}, outside the repository"
        ))),
        None => Err(malformed("it names no module".into())),
    }
}

/// Returns whether a file may belong to such a module, like `1_Pooling/config.json`.
fn is_of_module(name: &str) -> bool {
    let of_module = |(folder, file): (&str, &str)| {
        let is_numbered = folder.starts_with(|c: char| c.is_ascii_digit());
        is_numbered && [CONFIG, WEIGHTS, PICKLE].contains(&file)
    };
    name.split_once('/').is_some_and(of_module)
}

/// Controls whether requests may be sent to the Hub. Pass it to [`Hub::network`](crate::hub::Hub::network).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// Sends requests to the Hub, and falls back to a complete cached snapshot if it cannot be reached.
    Online,
    /// Uses only the cache and sends no requests.
    Offline,
}

/// An event reported during a download.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HubEvent<'a> {
    /// A file is arriving.
    Progress {
        /// The file's name in the repository.
        file: &'a str,
        /// Bytes received so far.
        bytes: u64,
        /// Size of the file in bytes.
        total: u64,
    },
    /// The Hub could not be reached, so the cached snapshot is used; it may be older than the one on the Hub.
    CacheUsed {
        /// The reason why the Hub could not be reached.
        reason: &'a str,
    },
}

type Handler = Arc<dyn Fn(&HubEvent<'_>) + Send + Sync>;

/// A model repository on the Hugging Face Hub, and options for downloading it.
///
/// ```no_run
/// use candle_blocks_files::hub::Hub; // also `candle_blocks::checkpoint::hub::Hub`
///
/// # fn main() -> candle_blocks_base::Result<()> {
/// let directory = Hub::new("sentence-transformers/all-MiniLM-L6-v2").revision("main").download()?;
/// assert!(directory.join("config.json").exists());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use]
pub struct Hub {
    repo: String,
    revision: String,
    token: Option<String>,
    endpoint: Option<String>,
    cache_dir: Option<PathBuf>,
    network: Option<Network>,
    retry: Option<(usize, Duration)>,
    etag_timeout: Option<Duration>,
    download_timeout: Option<Duration>,
    progress: Option<Handler>,
}

/// The requested content: one file, or `None` for the checkpoint.
type Wanted<'a> = Option<&'a str>;

impl Hub {
    /// Selects the branch `main` of a repository, named as on the Hub: `owner/name`, or just `name` (`gpt2`).
    pub fn new(repo: impl Into<String>) -> Self {
        Self {
            repo: repo.into(),
            revision: "main".into(),
            token: None,
            endpoint: None,
            cache_dir: None,
            network: None,
            retry: None,
            etag_timeout: None,
            download_timeout: None,
            progress: None,
        }
    }

    setters! {
        /// Selects another branch, tag, pull request (`refs/pr/1`) or full commit hash.
        revision(revision: impl Into<String>) => revision = revision.into();
        /// Sets the access token; by default `HF_TOKEN`, or the token that `hf auth login` stored (`HF_TOKEN_PATH`).
        token(token: impl Into<String>) => token = Some(token.into());
        /// Sets the address of the Hub or a mirror; by default `HF_ENDPOINT`, or `https://huggingface.co`.
        endpoint(endpoint: impl Into<String>) => endpoint = Some(endpoint.into());
        /// Sets the cache directory; by default `HF_HUB_CACHE`, `$HF_HOME/hub`, or `~/.cache/huggingface/hub`.
        cache_dir(path: impl Into<PathBuf>) => cache_dir = Some(path.into());
        /// Sets whether requests may be sent; by default yes, unless `HF_HUB_OFFLINE` (or `TRANSFORMERS_OFFLINE`) is set.
        network(network: Network) => network = Some(network);
        /// Sets how long to wait for an answer about the repository or a file; by default `HF_HUB_ETAG_TIMEOUT`, or 10 s.
        etag_timeout(time: Duration) => etag_timeout = Some(time);
        /// Sets how long to wait for each piece of a file; by default `HF_HUB_DOWNLOAD_TIMEOUT`, or 10 s. A server that
        /// sends nothing for this long is an error. A large file may take any time.
        download_timeout(time: Duration) => download_timeout = Some(time);
        /// Sets a progress handler. It is called between the pieces of a file, and should not block.
        progress(handler: impl Fn(&HubEvent<'_>) + Send + Sync + 'static) => progress = Some(Arc::new(handler));
    }

    /// Sets how often a failed request is retried, and the first pause, which doubles before each retry; by default 5
    /// retries and 100 ms. A response that breaks off and a server that stays silent are not retried.
    pub fn retry(mut self, times: usize, first_pause: Duration) -> Self {
        self.retry = Some((times, first_pause));
        self
    }

    /// Downloads the checkpoint files that the cache lacks and returns the snapshot directory. It then contains
    /// `config.json` and either `model.safetensors` or `model.safetensors.index.json` with all its shards. If the repository
    /// has neither, it contains `pytorch_model.bin` or its index with all shards.
    ///
    /// # Errors
    ///
    /// [`Error::Hub`] describes the failure and the cure: a repository, revision or file that does not exist, a missing or
    /// refused token, no network, a truncated response, weights in an unsupported format, or an incomplete offline cache.
    /// [`Error::BadIndex`] if the index names a file outside the repository or one that it does not contain; nothing is
    /// fetched then. [`Error::Io`] if the cache cannot be written.
    pub fn download(&self) -> Result<PathBuf> {
        self.obtain(None)
    }

    /// Downloads one file, such as `tokenizer.json`, unless it is cached, and returns its path.
    ///
    /// Each call resolves the revision again: use a commit hash if two calls must agree. Errors as for [`Self::download`].
    pub fn file(&self, name: &str) -> Result<PathBuf> {
        if !stays_inside(name) {
            return Err(self.error(format!(
                "{name:?} is not a path inside a repository; give a path as listed on the Hub, \
                 such as tokenizer.json"
            )));
        }
        self.obtain(Some(name))
    }

    fn obtain(&self, wanted: Wanted<'_>) -> Result<PathBuf> {
        self.validate()?;
        let folder = self.cache_dir.clone();
        let cache = Cache::new(
            &folder.unwrap_or_else(|| of_process().cache_dir()),
            &self.repo,
        );
        let cached = || cache.find(&self.revision, wanted);

        if self.network_or_environment() == Network::Offline {
            return cached().map_err(|missing| {
                self.error(format!(
                    "offline, and {missing}; download it once with the network on (unset HF_HUB_OFFLINE, or \
                     `Network::Online`), or name the cache that has it (HF_HUB_CACHE, `Hub::cache_dir`)"
                ))
            });
        }
        if is_commit(&self.revision)
            && let Ok(path) = cached()
        {
            return Ok(path);
        }
        match Remote::open(self, &cache) {
            Ok(remote) => {
                let path = remote.fetch(wanted)?;
                cache.write_ref(&self.revision, remote.commit())?;
                Ok(path)
            }
            Err(Failure::Unreachable(reason)) => match cached() {
                Ok(path) => {
                    self.report(&HubEvent::CacheUsed { reason: &reason });
                    Ok(path)
                }
                Err(missing) => Err(self.error(format!("{reason}; and {missing}"))),
            },
            Err(Failure::Refused(reason)) => Err(self.error(reason)),
        }
    }

    fn validate(&self) -> Result<()> {
        if !is_repo_id(&self.repo) {
            return Err(self.error(
                "not the name of a repository; expected owner/name or name, with letters, digits, '-', '_' and '.'",
            ));
        }
        if !stays_inside(&self.revision) {
            return Err(self.error("not a revision; give a branch, a tag or a commit hash"));
        }
        // The client would leave such a token out, and the Hub would then request one.
        if let Some(token) = self.token_or_environment()
            && !token.bytes().all(|byte| byte.is_ascii_graphic())
        {
            return Err(
                self.error("the token contains characters that no token has; copy it again")
            );
        }
        Ok(())
    }

    fn token_or_environment(&self) -> Option<String> {
        match &self.token {
            Some(token) => Some(token.trim().to_string()),
            None => of_process().token(),
        }
    }

    fn network_or_environment(&self) -> Network {
        self.network.unwrap_or_else(|| {
            // The order and the accepted values are those in huggingface_hub/constants.py.
            let requested = ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"]
                .iter()
                .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
            match requested {
                Some(value) if is_true(&value) => Network::Offline,
                _ => Network::Online,
            }
        })
    }

    fn report(&self, event: &HubEvent<'_>) {
        if let Some(handler) = &self.progress {
            handler(event);
        }
    }

    fn error(&self, reason: impl Into<String>) -> Error {
        Error::Hub {
            repo: format!("{}@{}", self.repo, self.revision),
            reason: reason.into(),
        }
    }
}

impl fmt::Debug for Hub {
    /// Prints everything but the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("repo", &self.repo)
            .field("revision", &self.revision)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("endpoint", &self.endpoint)
            .field("cache_dir", &self.cache_dir)
            .field("network", &self.network)
            .field("retry", &self.retry)
            .field("etag_timeout", &self.etag_timeout)
            .field("download_timeout", &self.download_timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_does_not_show_the_token() {
        let shown = format!("{:?}", Hub::new("a/b").token("hf_secret"));
        assert!(!shown.contains("secret"), "{shown}");
    }
}
