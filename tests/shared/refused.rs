//! What a call that should be refused says; never a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_blocks::candle_core;

/// What came of a call, a panic in words as well.
pub fn outcome<T>(call: impl FnOnce() -> candle_core::Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| format!("error: {error}")),
        Err(_) => Err("panic".to_string()),
    }
}

/// The message of a refusal.
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
