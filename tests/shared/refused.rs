//! Errors from calls that should be refused, never a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_blocks::candle_core;

/// Returns a call's outcome, with a panic as text too.
pub fn outcome<T>(call: impl FnOnce() -> candle_core::Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| format!("error: {error}")),
        Err(_) => Err("panic".to_string()),
    }
}

/// Returns a refusal's message.
#[track_caller]
pub fn refusal<T>(what: &str, call: impl FnOnce() -> candle_core::Result<T>) -> String {
    match outcome(call) {
        Ok(_) => panic!("{what} was not refused"),
        Err(message) => {
            assert_ne!(message, "panic", "{what}");
            message
        }
    }
}
