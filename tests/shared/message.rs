//! Error messages.

use std::fmt::Display;

/// Returns an error's message.
#[track_caller]
pub fn message<T, E: Display>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => panic!("expected an error"),
        // With its causes, where Display leaves them to the alternate form.
        Err(error) => format!("{error:#}"),
    }
}
