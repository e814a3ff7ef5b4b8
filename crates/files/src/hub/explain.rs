//! Explains failed requests to the Hub, and what to do about each.

use std::fmt::Display;
use std::io;

use super::Hub;

/// The reason why a request to the Hub failed.
pub(super) enum Failure {
    /// No answer: no network, a broken connection, or a server error.
    Unreachable(String),
    /// A refusal by the Hub, or a request that could not be made.
    Refused(String),
}

impl Failure {
    pub(super) fn into_reason(self) -> String {
        match self {
            Self::Unreachable(reason) | Self::Refused(reason) => reason,
        }
    }
}

/// "The repository has no such file."
pub(super) fn no_file(file: &str, hub: &Hub) -> String {
    format!(
        "404: the repository has no file {file} at revision {}",
        hub.revision
    )
}

/// "The cache cannot be used."
pub(super) fn explain_cache(error: &io::Error) -> Failure {
    Failure::Refused(format!(
        "the cache cannot be used: {error}; free space, or set another cache (HF_HUB_CACHE, `Hub::cache_dir`)"
    ))
}

/// "Something else than a Hub answers."
pub(super) fn not_a_hub(host: &str, reason: impl Display) -> Failure {
    Failure::Refused(format!(
        "{host} does not answer like a Hub ({reason}); check HF_ENDPOINT or `Hub::endpoint`"
    ))
}

/// Explains why there was no answer.
pub(super) fn explain_transport(error: &ureq::Error, host: &str) -> Failure {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    use ureq::Error::{BadUri, Http, InvalidProxyUrl, Io, Protocol};
    let ends = [
        BrokenPipe,
        ConnectionAborted,
        ConnectionReset,
        UnexpectedEof,
    ];
    match error {
        BadUri(_) | Http(_) | InvalidProxyUrl => Failure::Refused(format!(
            "no request can be made to {host}: {}; check HF_ENDPOINT, `Hub::endpoint` and the proxy settings",
            cause(error)
        )),
        Protocol(_) => explain_cut(error, host),
        Io(io) if ends.contains(&io.kind()) => explain_cut(error, host),
        _ => Failure::Unreachable(format!(
            "no connection to {host}: {}; check the network, the proxy settings and HF_ENDPOINT",
            cause(error)
        )),
    }
}

/// "The connection was cut."
pub(super) fn explain_cut(error: &(dyn std::error::Error + 'static), host: &str) -> Failure {
    Failure::Unreachable(format!(
        "the connection to {host} was cut: {}; the partial file is not used; try again",
        cause(error)
    ))
}

/// Returns the root cause of an error.
fn cause<'e>(error: &'e (dyn std::error::Error + 'static)) -> &'e dyn std::error::Error {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause
}

/// Explains an unsuccessful answer by its status, the Hub's error code, and its message.
pub(super) fn explain_answer(
    status: u16,
    code: String,
    message: String,
    file: Option<&str>,
    hub: &Hub,
    host: &str,
) -> Failure {
    let said = match &*message {
        "" => String::new(),
        message => format!(" ({message})"),
    };
    let reason = match (status, &*code) {
        (401, _) => format!(
            "{host} answered 401 Unauthorized{said}: the repository does not exist, or it is \
             private or gated and the token is missing or wrong; check the name, and set \
             HF_TOKEN or pass `Hub::token`"
        ),
        (403, _) => format!(
            "{host} answered 403 Forbidden{said}: the token gives no access; if the repository is gated, \
                 accept its conditions on its page, then set HF_TOKEN or pass `Hub::token` with a token that may read it"
        ),
        (404, "RepoNotFound") => format!(
            "404: {host} has no such repository; check the name, or, if it is private, set HF_TOKEN or pass \
                 `Hub::token`"
        ),
        (404, "RevisionNotFound") => format!(
            "404: the repository has no revision {}; check it on the repository's page",
            hub.revision
        ),
        (404, _) => match file {
            Some(file) => no_file(file, hub),
            None => format!(
                "404: {host} has no such repository, or it has no revision {}; check both names",
                hub.revision
            ),
        },
        (429, _) => format!(
            "{host} answered 429 Too Many Requests{said}; wait a while, or set HF_TOKEN, which raises the limit"
        ),
        (500..=599, _) => {
            return Failure::Unreachable(format!(
                "{host} failed with {status}{said}; try again later"
            ));
        }
        (status, _) => {
            format!("{host} answered {status}{said}; check HF_ENDPOINT or `Hub::endpoint`")
        }
    };
    Failure::Refused(reason)
}
