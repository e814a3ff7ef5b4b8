//! Requests to the Hub, which hf-hub sends: its client, the token's header and the user agent. The addresses, the checks, the
//! redirects, the time limits and the retries are ours, because hf-hub has none of them outside its own downloads, which write to
//! paths that a server chooses (docs/choices.md).
//!
//! No name from a response reaches the disk unchecked: [`Http::etag`].

use std::io::{self, Read};
use std::time::Duration;

use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use ureq::http::header::{AUTHORIZATION, ETAG, LINK, LOCATION};
use ureq::http::{HeaderMap, Response, StatusCode, Uri};
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body, Error};

use super::Hub;
use super::environment::of_process;
use super::explain::{Failure, explain_answer, explain_cache, explain_transport, not_a_hub};
use super::limits::{Limits, TimeLimit};
use super::names::{is_commit, is_file_name};

const DEFAULT_ENDPOINT: &str = "https://huggingface.co";
/// The most redirects, as in Python.
const MAX_REDIRECTS: usize = 20;
/// The most pages of a listing, with 1,000 entries each.
const MAX_PAGES: usize = 1_000;
/// The longest answer that is read into memory, in bytes. A page of a listing has about 300 kB.
const MAX_ANSWER: u64 = 1 << 26;
/// Retries for a request, and the pause before the first one.
const RETRIES: (usize, Duration) = (5, Duration::from_millis(100));

/// The characters that stay as they are in a segment of an address, as in Python.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The part of an answer that a request asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ask {
    /// The body, wherever redirects lead.
    Body,
    /// The headers alone. Redirects within the Hub, to a repository's new name, are followed. A redirect to a file's content
    /// is the answer: its headers describe the file.
    Headers,
}

/// A client for one Hub.
pub(super) struct Http<'a> {
    hub: &'a Hub,
    endpoint: String,
    /// hf-hub's client, for bodies.
    repo: ApiRepo,
    /// Sends what hf-hub cannot: a request for headers alone.
    agent: Agent,
    limits: Limits,
}

impl<'a> Http<'a> {
    pub(super) fn new(hub: &'a Hub) -> Result<Self, Failure> {
        let endpoint = hub.endpoint.clone();
        let endpoint = endpoint.or_else(|| std::env::var("HF_ENDPOINT").ok());
        let endpoint = endpoint.unwrap_or_else(|| DEFAULT_ENDPOINT.into());
        let refused = |reason: &str| {
            Failure::Refused(format!(
                "the Hub's address is not a URL ({reason}); correct HF_ENDPOINT or `Hub::endpoint`"
            ))
        };
        let address = endpoint.parse::<Uri>();
        if !is_web(&address.map_err(|error| refused(&error.to_string()))?) {
            return Err(refused("it does not begin with https:// or http://"));
        }
        let endpoint = endpoint.trim_end_matches('/').to_string();
        // Without its cache's methods, hf-hub writes nothing there.
        let api = ApiBuilder::from_cache(hf_hub::Cache::new(of_process().cache_dir()))
            .with_endpoint(endpoint.clone())
            .with_token(hub.token_or_environment())
            .with_user_agent("candle-blocks", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|error| refused(&error.to_string()))?;
        Ok(Self {
            hub,
            endpoint,
            repo: api.model(hub.repo.clone()),
            agent: Agent::new_with_defaults(),
            limits: Limits::of(hub, |name| std::env::var(name).ok())?,
        })
    }

    /// Returns the Hub's address, for messages.
    pub(super) fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Returns a revision's commit.
    pub(super) fn commit(&self, revision: &str) -> Result<String, Failure> {
        let answer = self
            .ask(self.url("api/models/", "/revision", [revision], "")?)?
            .0;
        let sha = answer.get("sha").and_then(Value::as_str);
        sha.filter(|sha| is_commit(sha)).map(String::from).ok_or_else(|| {
            Failure::Refused(format!(
                "{} gives no commit hash for the revision; check HF_ENDPOINT or `Hub::endpoint`",
                self.endpoint()
            ))
        })
    }

    /// Returns path and size of every file in a commit. Other kinds of entries are left out, as in Python.
    pub(super) fn files(&self, commit: &str) -> Result<Vec<(String, u64)>, Failure> {
        let mut url = self.url("api/models/", "/tree", [commit], "?recursive=true")?;
        let mut files = Vec::new();
        for _ in 0..MAX_PAGES {
            let (page, next) = self.ask(url)?;
            let entries = page.as_array();
            let entries =
                entries.ok_or_else(|| not_a_hub(self.endpoint(), "its listing is not a list"))?;
            for entry in entries {
                if entry.get("type").and_then(Value::as_str) != Some("file") {
                    continue;
                }
                let path = entry.get("path").and_then(Value::as_str);
                let size = entry.get("size").and_then(Value::as_u64);
                let (Some(path), Some(size)) = (path, size) else {
                    let reason = format!("it lists a file without path or size: {entry}");
                    return Err(not_a_hub(self.endpoint(), reason));
                };
                files.push((path.to_string(), size));
            }
            match next {
                Some(next) => url = next,
                None => return Ok(files),
            }
        }
        Err(not_a_hub(
            self.endpoint(),
            format!("its listing has more than {MAX_PAGES} pages"),
        ))
    }

    /// Returns the name of a file's blob, which must be a single plain path component.
    ///
    /// Otherwise a server could write and overwrite files anywhere.
    pub(super) fn etag(&self, commit: &str, file: &str) -> Result<String, Failure> {
        let url = self.file_url(commit, file)?;
        let response = self.send(Ask::Headers, url, &self.limits.asking, Some(file))?;
        let headers = response.headers();
        let named = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let refused = |header: &str, value: Option<&str>, expected: &str| {
            let found = value.map_or("none".into(), |value| format!("{value:?}"));
            Failure::Refused(format!(
                "{} names {found} as the file's {header}, expected {expected}; nothing was written; check HF_ENDPOINT \
                 or `Hub::endpoint`",
                self.endpoint()
            ))
        };
        let etag = named("x-linked-etag").or_else(|| named(ETAG.as_str()));
        let plain = etag.map(|etag| etag.strip_prefix("W/").unwrap_or(etag).trim_matches('"'));
        let plain = plain.filter(|etag| is_file_name(etag));
        let plain =
            plain.ok_or_else(|| refused("ETag", etag, "a hash that can be a file's name"))?;
        let found = named("x-repo-commit");
        let same = found.filter(|found| found.eq_ignore_ascii_case(commit));
        same.ok_or_else(|| refused("X-Repo-Commit", found, commit))?;
        Ok(plain.to_string())
    }

    /// Passes a file's content to `write` in pieces.
    pub(super) fn load(
        &self,
        commit: &str,
        file: &str,
        size: u64,
        mut write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let limit = &self.limits.loading;
        let response = self.send(Ask::Body, self.file_url(commit, file)?, limit, Some(file))?;
        // One extra byte reveals a longer file; an endless stream must not fill the disk.
        let mut body = response
            .into_body()
            .into_reader()
            .take(size.saturating_add(1));
        let mut piece = vec![0; 1 << 17];
        let mut done = 0;
        loop {
            let n = match body.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(limit.explain_read(&error, self.endpoint(), done, size));
                }
            };
            done += n as u64;
            write(&piece[..n]).map_err(|error| explain_cache(&error))?;
        }
    }

    /// Returns an answer's JSON, and the address of its next page.
    fn ask(&self, url: Uri) -> Result<(Value, Option<Uri>), Failure> {
        let limit = &self.limits.asking;
        let response = self.send(Ask::Body, url.clone(), limit, None)?;
        let next = next_page(response.headers()).and_then(|next| join(&url, next));
        let mut text = Vec::new();
        let mut body = response.into_body().into_reader().take(MAX_ANSWER);
        let read = body.read_to_end(&mut text);
        read.map_err(|error| limit.explain_read(&error, self.endpoint(), text.len() as u64, 0))?;
        let parsed = serde_json::from_slice(&text);
        let parsed = parsed.map_err(|error| not_a_hub(self.endpoint(), error))?;
        Ok((parsed, next))
    }

    /// Returns the answer to a request after redirects and retries.
    fn send(
        &self,
        ask: Ask,
        mut url: Uri,
        limit: &TimeLimit,
        file: Option<&str>,
    ) -> Result<Response<Body>, Failure> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.tried(ask, &url, limit)?;
            let (status, headers) = (response.status(), response.headers());
            if let Some(location) = headers.get(LOCATION).filter(|_| status.is_redirection()) {
                let described = ["x-linked-etag", ETAG.as_str()];
                if ask == Ask::Headers && described.iter().any(|name| headers.contains_key(*name)) {
                    return Ok(response);
                }
                let target = location.to_str().ok();
                url = target
                    .and_then(|target| join(&url, target))
                    .ok_or_else(|| {
                        let reason =
                            format!("it redirects to {location:?}, which is not an address");
                        not_a_hub(self.endpoint(), reason)
                    })?;
                continue;
            }
            if status.is_success() {
                return Ok(response);
            }
            let code = header(headers, "x-error-code");
            let message = header(headers, "x-error-message");
            let mut body = Vec::new();
            // A message that arrives incompletely counts as none.
            let reader = response.into_body().into_reader();
            let _ = reader.take(1 << 16).read_to_end(&mut body);
            let message = message.or_else(|| {
                let body: Value = serde_json::from_slice(&body).ok()?;
                Some(body.get("error")?.as_str()?.to_string())
            });
            return Err(explain_answer(
                status.as_u16(),
                code.unwrap_or_default(),
                message.unwrap_or_default(),
                file,
                self.hub,
                &self.host(&url),
            ));
        }
        Err(Failure::Refused(format!(
            "{} redirects in a circle: after {MAX_REDIRECTS} redirects it names {url}; check HF_ENDPOINT or \
             `Hub::endpoint`",
            self.endpoint()
        )))
    }

    /// Sends one request, and retries if that may help. A request that reached the time limit is not retried.
    fn tried(&self, ask: Ask, url: &Uri, limit: &TimeLimit) -> Result<Response<Body>, Failure> {
        let (mut left, mut pause) = self.hub.retry.unwrap_or(RETRIES);
        loop {
            let answer = self.once(ask, url, limit);
            let is_final = match &answer {
                Ok(response) => !may_pass(response.status()),
                Err(error) => matches!(error, Error::Timeout(_) | Error::Http(_)),
            };
            if is_final || left == 0 {
                return answer.map_err(|error| match error {
                    Error::Timeout(_) => limit.explain_no_answer(&self.host(url)),
                    error => explain_transport(&error, &self.host(url)),
                });
            }
            left -= 1;
            pause *= 2;
            std::thread::sleep(pause);
        }
    }

    /// Sends one request of hf-hub's, or one for headers alone with what hf-hub would send.
    fn once(&self, ask: Ask, url: &Uri, limit: &TimeLimit) -> Result<Response<Body>, Error> {
        let mut request = self.repo.info_request().uri(url);
        let mut headers = request.headers_ref().cloned().unwrap_or_default();
        // Other hosts, to which the Hub redirects, must not see the token.
        if !self.is_own(url) {
            headers.remove(AUTHORIZATION);
        }
        if ask == Ask::Headers {
            request = self.agent.head(url);
        }
        if let Some(sent) = request.headers_mut() {
            *sent = headers;
        }
        // The system's certificates: a company's proxy may have its own.
        let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier);
        let request = request.config().tls_config(tls.build());
        let request = request.http_status_as_error(false).max_redirects(0);
        let request = request.max_redirects_will_error(false);
        let time = Some(limit.time);
        let request = request.timeout_resolve(time).timeout_connect(time);
        let request = request.timeout_recv_response(time).timeout_per_read(time);
        request.accept_encoding("identity").build().call()
    }

    /// Returns whether an address is on the Hub's own host.
    fn is_own(&self, url: &Uri) -> bool {
        let own = self.endpoint.parse::<Uri>();
        own.is_ok_and(|own| own.scheme() == url.scheme() && own.authority() == url.authority())
    }

    /// Returns a host's name for messages: the Hub's own address, or the host to which it redirected.
    fn host(&self, url: &Uri) -> String {
        match (url.scheme(), url.authority()) {
            (Some(scheme), Some(host)) if !self.is_own(url) => format!("{scheme}://{host}"),
            _ => self.endpoint.clone(),
        }
    }

    fn file_url(&self, commit: &str, file: &str) -> Result<Uri, Failure> {
        self.url(
            "",
            "/resolve",
            [commit].into_iter().chain(file.split('/')),
            "",
        )
    }

    /// Returns an address of the repository's. Each segment is encoded; a revision with a slash is one segment.
    fn url<'s>(
        &self,
        before: &str,
        after: &str,
        segments: impl IntoIterator<Item = &'s str>,
        query: &str,
    ) -> Result<Uri, Failure> {
        let mut url = format!("{}/{before}{}{after}", self.endpoint, self.hub.repo);
        for segment in segments {
            url.push('/');
            url.extend(utf8_percent_encode(segment, PLAIN));
        }
        url.push_str(query);
        url.parse()
            .map_err(|error| not_a_hub(self.endpoint(), format!("{url}: {error}")))
    }
}

fn is_web(url: &Uri) -> bool {
    matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some()
}

/// Returns the address that a response names, which may begin with a slash and be on the same host.
fn join(base: &Uri, target: &str) -> Option<Uri> {
    let target = target.split('#').next()?;
    let (scheme, host) = (base.scheme_str()?, base.authority()?);
    let target = match target {
        on_host if on_host.starts_with("//") => format!("{scheme}:{on_host}"),
        path if path.starts_with('/') => format!("{scheme}://{host}{path}"),
        whole => whole.to_string(),
    };
    target.parse().ok().filter(is_web)
}

/// Returns whether a refusal may be temporary.
fn may_pass(status: StatusCode) -> bool {
    [408, 429, 500, 502, 503, 504].contains(&status.as_u16())
}

fn header(headers: &HeaderMap, name: &str) -> Option<String> {
    Some(headers.get(name)?.to_str().ok()?.to_string())
}

/// Returns the address with `rel="next"`.
fn next_page(headers: &HeaderMap) -> Option<&str> {
    let links = headers.get(LINK)?.to_str().ok()?;
    let next = links
        .split(',')
        .find(|link| link.contains("rel=\"next\""))?;
    Some(next.split_once('<')?.1.split_once('>')?.0)
}
