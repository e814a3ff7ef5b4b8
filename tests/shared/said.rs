//! What errors say.

use std::fmt::Display;

/// Demands that a text has all of these words.
#[track_caller]
pub fn assert_says(text: impl Display, words: &[&str]) {
    let text = text.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
}
