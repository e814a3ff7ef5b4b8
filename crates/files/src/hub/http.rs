//! Requests to the Hub, with the token, the time limits and the retries of `huggingface_hub`.
//!
//! No name from a response reaches the disk unchecked: [`Http::etag`].

use std::io::{self, Read};
use std::time::Duration;

use reqwest::blocking::{Client, Response};
use reqwest::header::{AUTHORIZATION, ETAG, HeaderMap, HeaderValue, LINK, LOCATION};
use reqwest::{Method, StatusCode, Url, redirect};
use serde_json::Value;

use super::Hub;
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

/// Selects the redirects that a request follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Follow {
    All,
    /// Follows redirects within the Hub, to a repository's new name. A redirect to a file's content is the answer: its
    /// headers describe the file.
    Undescribed,
}

/// A client for one Hub.
pub(super) struct Http<'a> {
    hub: &'a Hub,
    endpoint: Url,
    authorization: Option<HeaderValue>,
    /// The client for metadata requests.
    asking: (Client, TimeLimit),
    /// The client for file contents.
    loading: (Client, TimeLimit),
}

impl<'a> Http<'a> {
    pub(super) fn new(hub: &'a Hub) -> Result<Self, Failure> {
        let address = hub.endpoint.clone();
        let address = address
            .or_else(|| std::env::var("HF_ENDPOINT").ok())
            .unwrap_or_else(|| DEFAULT_ENDPOINT.into());
        let endpoint = Url::parse(&address).map_err(|error| {
            Failure::Refused(format!(
                "the Hub's address is not a URL ({error}); correct HF_ENDPOINT or `Hub::endpoint`"
            ))
        })?;
        let authorization = hub.token_or_environment().and_then(|token| {
            let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        let limits = Limits::of(hub, |name| std::env::var(name).ok())?;
        let client = |limit: &TimeLimit| {
            Client::builder()
                .user_agent(concat!("candle-blocks/", env!("CARGO_PKG_VERSION")))
                .redirect(redirect::Policy::none())
                .timeout(limit.time)
                .build()
                .map_err(|error| explain_transport(&error, endpoint.as_str()))
        };
        Ok(Self {
            hub,
            authorization,
            asking: (client(&limits.asking)?, limits.asking),
            loading: (client(&limits.loading)?, limits.loading),
            endpoint,
        })
    }

    /// Returns the Hub's address, for messages.
    pub(super) fn endpoint(&self) -> &str {
        self.endpoint.as_str().trim_end_matches('/')
    }

    /// Returns a revision's commit.
    pub(super) fn commit(&self, revision: &str) -> Result<String, Failure> {
        let repo = self.hub.repo.split('/');
        let url = self.url(
            ["api", "models"]
                .into_iter()
                .chain(repo)
                .chain(["revision", revision]),
        );
        let answer = self.ask(url)?.0;
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
        let repo = self.hub.repo.split('/');
        let mut url = self.url(
            ["api", "models"]
                .into_iter()
                .chain(repo)
                .chain(["tree", commit]),
        );
        url.set_query(Some("recursive=true"));
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
        let (response, _) = self.send(
            &self.asking,
            &Method::HEAD,
            self.file_url(commit, file),
            Follow::Undescribed,
            Some(file),
        )?;
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
        let url = self.file_url(commit, file);
        let (response, _) = self.send(&self.loading, &Method::GET, url, Follow::All, Some(file))?;
        // One extra byte reveals a longer file; an endless stream must not fill the disk.
        let mut body = response.take(size.saturating_add(1));
        let mut piece = vec![0; 1 << 17];
        let mut done = 0;
        loop {
            let n = match body.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let limit = &self.loading.1;
                    return Err(limit.explain_read(&error, self.endpoint(), done, size));
                }
            };
            done += n as u64;
            write(&piece[..n]).map_err(|error| explain_cache(&error))?;
        }
    }

    /// Returns an answer's JSON, and the address of its next page.
    fn ask(&self, url: Url) -> Result<(Value, Option<Url>), Failure> {
        let (response, _) =
            self.send(&self.asking, &Method::GET, url.clone(), Follow::All, None)?;
        let next = next_page(response.headers()).and_then(|next| url.join(next).ok());
        let mut text = Vec::new();
        let read = response.take(MAX_ANSWER).read_to_end(&mut text);
        read.map_err(|error| {
            self.asking
                .1
                .explain_read(&error, self.endpoint(), text.len() as u64, 0)
        })?;
        let parsed = serde_json::from_slice(&text);
        Ok((
            parsed.map_err(|error| not_a_hub(self.endpoint(), error))?,
            next,
        ))
    }

    /// Returns the answer to a request after redirects and retries, and its address.
    fn send(
        &self,
        (client, limit): &(Client, TimeLimit),
        method: &Method,
        mut url: Url,
        follow: Follow,
        file: Option<&str>,
    ) -> Result<(Response, Url), Failure> {
        for _ in 0..=MAX_REDIRECTS {
            let response = self.tried(client, limit, method, &url)?;
            let status = response.status();
            let location = response.headers().get(LOCATION);
            if let Some(location) = location.filter(|_| status.is_redirection()) {
                let is_described = ["x-linked-etag", ETAG.as_str()]
                    .iter()
                    .any(|name| response.headers().contains_key(*name));
                if follow == Follow::Undescribed && is_described {
                    return Ok((response, url));
                }
                let target = location
                    .to_str()
                    .ok()
                    .and_then(|target| url.join(target).ok());
                let is_web = |target: &Url| ["http", "https"].contains(&target.scheme());
                url = target.filter(is_web).ok_or_else(|| {
                    not_a_hub(
                        self.endpoint(),
                        format!("it redirects to {location:?}, which is not an address"),
                    )
                })?;
                continue;
            }
            if status.is_success() {
                return Ok((response, url));
            }
            let code = header(response.headers(), "x-error-code");
            let message = header(response.headers(), "x-error-message");
            let mut body = Vec::new();
            // A message that arrives incompletely counts as none.
            let _ = response.take(1 << 16).read_to_end(&mut body);
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
    fn tried(
        &self,
        client: &Client,
        limit: &TimeLimit,
        method: &Method,
        url: &Url,
    ) -> Result<Response, Failure> {
        let (times, mut pause) = self.hub.retry.unwrap_or(RETRIES);
        let mut left = times;
        loop {
            let mut request = client.request(method.clone(), url.clone());
            // Other hosts, to which the Hub redirects, must not see the token.
            if let Some(token) = &self.authorization
                && url.origin() == self.endpoint.origin()
            {
                request = request.header(AUTHORIZATION, token.clone());
            }
            let answer = request.send();
            let is_final = match &answer {
                Ok(response) => !may_pass(response.status()),
                Err(error) => error.is_timeout() || error.is_builder(),
            };
            if is_final || left == 0 {
                return answer.map_err(|error| match error.is_timeout() {
                    true => limit.explain_no_answer(&self.host(url)),
                    false => explain_transport(&error, &self.host(url)),
                });
            }
            left -= 1;
            pause *= 2;
            std::thread::sleep(pause);
        }
    }

    /// Returns a host's name for messages: the Hub's own address, or the host to which it redirected.
    fn host(&self, url: &Url) -> String {
        match url.origin() == self.endpoint.origin() {
            true => self.endpoint().to_string(),
            false => url.origin().ascii_serialization(),
        }
    }

    fn file_url(&self, commit: &str, file: &str) -> Url {
        let repo = self.hub.repo.split('/');
        self.url(repo.chain(["resolve", commit]).chain(file.split('/')))
    }

    /// Returns an address below the Hub's. Each segment is encoded; a revision with a slash is one segment.
    fn url<'s>(&self, segments: impl Iterator<Item = &'s str>) -> Url {
        let mut url = self.endpoint.clone();
        // Fails only for addresses such as `mailto:`, to which no request is sent.
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(segments);
        }
        url
    }
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
