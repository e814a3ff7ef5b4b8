//! Time limits for a silent Hub: `HF_HUB_ETAG_TIMEOUT` and `HF_HUB_DOWNLOAD_TIMEOUT` of `huggingface_hub`.

use std::io;
use std::time::Duration;

use super::Hub;
use super::explain::{Failure, explain_cut};

/// The default value of both variables in `huggingface_hub`.
const DEFAULT: Duration = Duration::from_secs(10);

/// A time limit, and the two names by which it can be set.
pub(super) struct TimeLimit {
    pub time: Duration,
    variable: &'static str,
    option: &'static str,
}

/// The limits for a download.
pub(super) struct Limits {
    /// For an answer about a repository or a file.
    pub asking: TimeLimit,
    /// For each piece of a file.
    pub loading: TimeLimit,
}

impl Limits {
    /// Returns the limits from the options, or else from the environment.
    pub(super) fn of(
        hub: &Hub,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Failure> {
        let limit = |option, time: Option<Duration>, name: &'static str| {
            let time = match (time, variable(name).filter(|value| !value.is_empty())) {
                (Some(time), _) => time,
                (None, Some(value)) => seconds(&value).ok_or_else(|| {
                    Failure::Refused(format!(
                        "{name} is {value:?}, expected a number of seconds above 0, such as 10; correct or unset it"
                    ))
                })?,
                (None, None) => DEFAULT,
            };
            Ok(TimeLimit {
                time,
                variable: name,
                option,
            })
        };
        Ok(Self {
            asking: limit("etag_timeout", hub.etag_timeout, "HF_HUB_ETAG_TIMEOUT")?,
            loading: limit(
                "download_timeout",
                hub.download_timeout,
                "HF_HUB_DOWNLOAD_TIMEOUT",
            )?,
        })
    }
}

impl TimeLimit {
    /// "No answer came in time."
    pub(super) fn explain_no_answer(&self, host: &str) -> Failure {
        Failure::Unreachable(format!("no answer from {host} in {}", self.cure()))
    }

    /// Explains why a body broke off after `done` bytes out of `size`.
    pub(super) fn explain_read(
        &self,
        error: &io::Error,
        host: &str,
        done: u64,
        size: u64,
    ) -> Failure {
        let inner = error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<ureq::Error>());
        if matches!(inner, Some(ureq::Error::Timeout(_))) || error.kind() == io::ErrorKind::TimedOut
        {
            let of = match size {
                0 => String::new(),
                size => format!(" of {size}"),
            };
            return Failure::Unreachable(format!(
                "{host} stalled: after {done}{of} bytes nothing came in {}",
                self.cure()
            ));
        }
        explain_cut(error, host)
    }

    /// Returns the limit, and how to increase it.
    fn cure(&self) -> String {
        format!(
            "{} s; check the network and try again, or set a longer time ({} in seconds, or `Hub::{}`)",
            self.time.as_secs_f64(),
            self.variable,
            self.option
        )
    }
}

/// Parses a number of seconds. Python only accepts integers.
fn seconds(value: &str) -> Option<Duration> {
    let seconds = value.trim().parse().ok().filter(|seconds| *seconds > 0.0)?;
    Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| !time.is_zero())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(hub: &Hub, variables: &[(&str, &str)]) -> Result<[Duration; 2], String> {
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| value.to_string())
        };
        match Limits::of(hub, variable) {
            Ok(limits) => Ok([limits.asking.time, limits.loading.time]),
            Err(failure) => Err(failure.into_reason()),
        }
    }

    #[test]
    fn the_time_limits_are_those_of_huggingface_hub() {
        let s = Duration::from_secs;
        let hub = Hub::new("a/b");
        let both = [
            ("HF_HUB_ETAG_TIMEOUT", "3"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", " 60\n"),
        ];
        assert_eq!(limits(&hub, &[]), Ok([s(10), s(10)]));
        assert_eq!(limits(&hub, &both), Ok([s(3), s(60)]));
        assert_eq!(
            limits(&hub.clone().download_timeout(s(1)), &both),
            Ok([s(3), s(1)])
        );
        assert_eq!(limits(&hub.etag_timeout(s(1)), &both), Ok([s(1), s(60)]));
    }

    #[test]
    fn a_time_limit_that_is_no_time_is_refused_by_name() {
        for value in ["ten", "0", "-1", "nan", "inf", "1e400", "10s"] {
            let reason = limits(&Hub::new("a/b"), &[("HF_HUB_DOWNLOAD_TIMEOUT", value)]);
            let reason = reason.unwrap_err();
            assert!(
                reason.contains("HF_HUB_DOWNLOAD_TIMEOUT") && reason.contains(value),
                "{reason}"
            );
        }
    }
}
