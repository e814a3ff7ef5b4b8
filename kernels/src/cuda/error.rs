//! What the driver, the compiler and cuBLASLt refuse.

use std::fmt;

/// What was asked for, and the reason of CUDA's libraries.
#[derive(Debug)]
pub struct Error(String);

impl Error {
    pub(super) fn new(what: impl fmt::Display, reason: impl fmt::Debug) -> Self {
        Self(format!("cuda: {what}: {reason:?}"))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}
