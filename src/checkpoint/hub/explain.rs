//! What the client's errors mean to a user, and what to do about each.

use hf_hub::HFError;

use super::Hub;

/// Why the Hub gave nothing.
pub(super) enum Failure {
    /// It could not be asked: no network, a connection that broke, a server error.
    Unreachable(String),
    /// It answered, and the answer is no; or the request could not be made.
    Refused(String),
}

impl Failure {
    pub(super) fn into_reason(self) -> String {
        match self {
            Self::Unreachable(reason) | Self::Refused(reason) => reason,
        }
    }
}

/// The cause and the cure, in words.
pub(super) fn explain(error: &HFError, hub: &Hub, endpoint: &str) -> Failure {
    let reason = match error {
        HFError::Request { source, .. } if !source.is_builder() => {
            return explain_transport(error, source.is_connect(), source.is_timeout(), endpoint);
        }
        HFError::Io(io) => format!(
            "the cache cannot be used: {io}; make room, or name another (HF_HUB_CACHE, `Hub::cache_dir`)"
        ),
        HFError::Url(url) => format!(
            "the Hub's address is not a URL ({url}); correct HF_ENDPOINT or `Hub::endpoint`"
        ),
        HFError::CacheLockTimeout { path } => format!(
            "another process is downloading the same file ({}); wait for it and try again",
            path.display()
        ),
        HFError::EntryNotFound {
            path,
            context: None,
            ..
        } => no_file(path, hub),
        other => match answer(other) {
            Some(answer) => return explain_answer(answer, other, hub, endpoint),
            None => format!("{other}; try again"),
        },
    };
    Failure::Refused(reason)
}

/// "The repository has no such file."
pub(super) fn no_file(file: &str, hub: &Hub) -> String {
    format!(
        "404: the repository has no file {file} at revision {}",
        hub.revision
    )
}

fn explain_transport(error: &HFError, connect: bool, timeout: bool, endpoint: &str) -> Failure {
    let mut cause: &dyn std::error::Error = error;
    let mut json = false;
    while let Some(source) = cause.source() {
        json |= source.is::<serde_json::Error>();
        cause = source;
    }
    if json {
        return Failure::Refused(format!(
            "{endpoint} does not answer as a Hub does ({cause}); check HF_ENDPOINT or `Hub::endpoint`"
        ));
    }
    Failure::Unreachable(if connect || timeout {
        format!(
            "no connection to {endpoint}: {cause}; check the network, the proxy settings and HF_ENDPOINT"
        )
    } else {
        format!(
            "the connection to {endpoint} was cut: {cause}; nothing of the file is used; try again"
        )
    })
}

/// The status, the Hub's code and its message, of an HTTP answer that was not a success.
fn answer(error: &HFError) -> Option<(u16, &str, &str)> {
    let context = match error {
        HFError::Http { context }
        | HFError::AuthRequired { context }
        | HFError::Forbidden { context }
        | HFError::Conflict { context }
        | HFError::RateLimited { context, .. } => context,
        HFError::RepoNotFound { context, .. }
        | HFError::RevisionNotFound { context, .. }
        | HFError::EntryNotFound { context, .. } => context.as_ref()?,
        _ => return None,
    };
    let code = context.error_code.as_deref().unwrap_or_default();
    let message = context.server_message.as_deref().unwrap_or_default();
    Some((context.status.as_u16(), code, message))
}

fn explain_answer(
    (status, code, message): (u16, &str, &str),
    error: &HFError,
    hub: &Hub,
    endpoint: &str,
) -> Failure {
    let said = match message {
        "" => String::new(),
        message => format!(" ({message})"),
    };
    let reason = match (status, code) {
        (401, _) => format!(
            "{endpoint} answered 401 Unauthorized{said}: there is no such repository, or it is private or gated \
                 and the token is missing or wrong; check the name, and set HF_TOKEN or pass `Hub::token`"
        ),
        (403, _) => format!(
            "{endpoint} answered 403 Forbidden{said}: the token gives no access; if the repository is gated, \
                 accept its conditions on its page, then set HF_TOKEN or pass `Hub::token` with a token that may read it"
        ),
        (404, "RepoNotFound") => format!(
            "404: {endpoint} has no such repository; check the name, or, if it is private, set HF_TOKEN or pass \
                 `Hub::token`"
        ),
        (404, "RevisionNotFound") => format!(
            "404: the repository has no revision {}; check it on the repository's page",
            hub.revision
        ),
        (404, _) => match error {
            HFError::EntryNotFound { path, .. } => no_file(path, hub),
            _ => format!(
                "404: {endpoint} has no such repository, or it has no revision {}; check both names",
                hub.revision
            ),
        },
        (429, _) => format!(
            "{endpoint} answered 429 Too Many Requests{said}; wait a while, or set HF_TOKEN, which raises the limit"
        ),
        (500..=599, _) => {
            return Failure::Unreachable(format!(
                "{endpoint} failed with {status}{said}; try again later"
            ));
        }
        (status, _) => {
            format!("{endpoint} answered {status}{said}; check HF_ENDPOINT or `Hub::endpoint`")
        }
    };
    Failure::Refused(reason)
}
